#include "worker/graphs/arguments.h"

#include <ATen/ops/from_blob.h>
#include <ATen/ops/scalar_tensor.h>
#include <c10/core/Layout.h>
#include <c10/core/MemoryFormat.h>
#include <c10/util/Exception.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "worker/graphs/tensors.h"

namespace harmony::worker {
namespace {

at::Tensor AsWrapped(at::Tensor number) {
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  return number;
}

// A number where a tensor is due. It lies outside of the workspace, which has to be empty between
// tasks.
template <typename T>
c10::IValue WrappedNumber(T number) {
  return AsWrapped(at::from_blob(
      new T(number), {}, [](void* data) { delete static_cast<T*>(data); },
      at::TensorOptions(c10::CppTypeToScalarType<T>::value)));
}

c10::MemoryFormat MemoryFormatOf(graphs::MemoryFormatName name) {
  switch (name) {
    case graphs::MemoryFormatName::kContiguous:
      return c10::MemoryFormat::Contiguous;
    case graphs::MemoryFormatName::kPreserve:
      return c10::MemoryFormat::Preserve;
    case graphs::MemoryFormatName::kChannelsLast:
      return c10::MemoryFormat::ChannelsLast;
  }
  return c10::MemoryFormat::Contiguous;
}

// What an argument is, for messages.
struct Describe {
  std::string operator()(std::monostate) const { return "null"; }
  std::string operator()(const graphs::ValueNumber& use) const {
    return absl::StrCat("value ", use.value);
  }
  std::string operator()(int64_t number) const { return absl::StrCat(number); }
  std::string operator()(double number) const { return absl::StrCat("the float ", number); }
  std::string operator()(bool flag) const { return flag ? "true" : "false"; }
  std::string operator()(const std::string&) const { return "a text"; }
  std::string operator()(DType) const { return "a dtype"; }
  std::string operator()(graphs::DefaultDevice) const { return "a device"; }
  std::string operator()(graphs::LayoutName) const { return "a layout"; }
  std::string operator()(graphs::MemoryFormatName) const { return "a memory format"; }
  std::string operator()(const graphs::ArgumentList&) const { return "a list"; }
};

// How lists of a type are boxed: c10::List of what its elements are.
c10::TypePtr BoxedElement(const c10::TypePtr& type) {
  switch (type->kind()) {
    case c10::TypeKind::SymIntType:
      return c10::IntType::get();
    case c10::TypeKind::SymFloatType:
      return c10::FloatType::get();
    default:
      return type;
  }
}

}  // namespace

// Of one argument: what its content becomes for a type.
class BoundArgument::Binder {
 public:
  Binder(const graphs::Argument& argument, absl::Span<const ValueKind> kinds, c10::Device device)
      : argument_(argument), kinds_(kinds), device_(device) {}

  absl::StatusOr<BoundArgument> As(const c10::TypePtr& type, std::optional<int32_t> length) const {
    if (type->kind() == c10::TypeKind::OptionalType) {
      if (Holds<std::monostate>()) return Constant(c10::IValue());
      return As(type->castRaw<c10::OptionalType>()->getElementType(), length);
    }
    if (type->kind() == c10::TypeKind::ListType) {
      return List(type->castRaw<c10::ListType>()->getElementType(), length, *type);
    }
    if (const auto* use = std::get_if<graphs::ValueNumber>(&argument_.content))
      return Value(*use, *type);
    c10::IValue constant = ConstantOf(*type);
    if (constant.isNone()) return Mismatch(*type);
    return Constant(std::move(constant));
  }

 private:
  template <typename T>
  bool Holds() const {
    return std::holds_alternative<T>(argument_.content);
  }
  template <typename T>
  const T& Get() const {
    return std::get<T>(argument_.content);
  }
  static BoundArgument Constant(c10::IValue value) { return BoundArgument(std::move(value)); }

  absl::Status Mismatch(const c10::Type& type) const {
    return absl::InvalidArgumentError(absl::StrCat("must be of type ", type.str(), ", is ",
                                                   std::visit(Describe(), argument_.content)));
  }

  absl::StatusOr<BoundArgument> Value(const graphs::ValueNumber& number,
                                      const c10::Type& type) const {
    const bool tensor = kinds_[static_cast<size_t>(number.value)] == ValueKind::kTensor;
    ValueUse use{number.value};
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        if (!tensor) use.as = ValueUse::As::kWrappedNumber;
        return BoundArgument(use);
      case c10::TypeKind::FloatType:
        use.as = ValueUse::As::kFloat;
        [[fallthrough]];
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
      case c10::TypeKind::NumberType:
        if (!tensor) return BoundArgument(use);
        break;
      default:
        break;
    }
    return absl::InvalidArgumentError(absl::StrCat("must be of type ", type.str(), ", value ",
                                                   number.value, " is ",
                                                   tensor ? "a tensor" : "an integer"));
  }

  // None where the content does not fit. No null does: that is for optional types.
  c10::IValue ConstantOf(const c10::Type& type) const {
    switch (type.kind()) {
      case c10::TypeKind::TensorType:
        if (Holds<int64_t>()) return WrappedNumber(Get<int64_t>());
        if (Holds<double>()) return WrappedNumber(Get<double>());
        if (Holds<bool>()) return WrappedNumber(Get<bool>());
        return {};
      case c10::TypeKind::NumberType:
        if (Holds<int64_t>()) return Get<int64_t>();
        if (Holds<double>()) return Get<double>();
        if (Holds<bool>()) return Get<bool>();
        return {};
      case c10::TypeKind::IntType:
      case c10::TypeKind::SymIntType:
        if (Holds<int64_t>()) return Get<int64_t>();
        return {};
      case c10::TypeKind::FloatType:
        if (Holds<int64_t>()) return static_cast<double>(Get<int64_t>());
        if (Holds<double>()) return Get<double>();
        return {};
      case c10::TypeKind::BoolType:
        if (Holds<bool>()) return Get<bool>();
        return {};
      case c10::TypeKind::StringType:
        if (Holds<std::string>()) return Get<std::string>();
        return {};
      case c10::TypeKind::ScalarTypeType:
        if (Holds<DType>()) return static_cast<int64_t>(ScalarTypeOf(Get<DType>()));
        return {};
      case c10::TypeKind::LayoutType:
        if (Holds<graphs::LayoutName>()) return static_cast<int64_t>(c10::Layout::Strided);
        return {};
      case c10::TypeKind::MemoryFormatType:
        if (!Holds<graphs::MemoryFormatName>()) return {};
        return static_cast<int64_t>(MemoryFormatOf(Get<graphs::MemoryFormatName>()));
      case c10::TypeKind::DeviceObjType:
        if (Holds<graphs::DefaultDevice>()) return device_;
        return {};
      default:  // generators, storages, ...: the format has none
        return {};
    }
  }

  absl::StatusOr<BoundArgument> List(const c10::TypePtr& element, std::optional<int32_t> length,
                                     const c10::Type& type) const {
    std::vector<BoundArgument> items;
    if (Holds<graphs::ArgumentList>()) {
      const graphs::ArgumentList& list = Get<graphs::ArgumentList>();
      for (size_t i = 0; i < list.size(); ++i) {
        absl::StatusOr<BoundArgument> item = Binder(list[i], kinds_, device_).As(element, {});
        if (!item.ok()) return WithContext(item.status(), absl::StrCat("[", i, "]"));
        items.push_back(*std::move(item));
      }
    } else {
      // As in a schema "int[2]": one number for all.
      if (!length.has_value() || !Holds<int64_t>()) return Mismatch(type);
      HARMONY_ASSIGN_OR_RETURN(const BoundArgument item, As(element, {}));
      items.assign(static_cast<size_t>(*length), item);
    }
    bool constant = true;
    for (const BoundArgument& item : items) constant &= item.constant() != nullptr;
    BoundArgument list{Content(BoundArgument::List{BoxedElement(element), std::move(items)})};
    if (!constant) return list;
    std::vector<c10::IValue> no_values;
    return Constant(list.Make(no_values));
  }

  const graphs::Argument& argument_;
  const absl::Span<const ValueKind> kinds_;
  const c10::Device device_;
};

absl::StatusOr<BoundArgument> BoundArgument::Bind(const graphs::Argument& argument,
                                                  const c10::TypePtr& type,
                                                  std::optional<int32_t> length,
                                                  absl::Span<const ValueKind> kinds,
                                                  c10::Device device) {
  return Binder(argument, kinds, device).As(type, length);
}

c10::IValue BoundArgument::Make(std::vector<c10::IValue>& values) const {
  if (const c10::IValue* constant = this->constant()) return *constant;
  if (const auto* use = std::get_if<ValueUse>(&content_)) {
    c10::IValue& value = values[static_cast<size_t>(use->value)];
    switch (use->as) {
      case ValueUse::As::kItself:
        break;
      case ValueUse::As::kWrappedNumber:
        return AsWrapped(at::scalar_tensor(value.toInt(), at::kLong));
      case ValueUse::As::kFloat:
        return static_cast<double>(value.toInt());
    }
    return use->last ? std::move(value) : value;
  }
  const List& list = std::get<List>(content_);
  c10::impl::GenericList made(list.element);
  made.reserve(list.items.size());
  for (const BoundArgument& item : list.items) made.push_back(item.Make(values));
  return made;
}

void BoundArgument::Push(std::vector<c10::IValue>& values, torch::jit::Stack& stack) const {
  stack.push_back(Make(values));
}

void BoundArgument::ForEachUse(absl::FunctionRef<void(ValueUse& use)> visit) {
  if (auto* use = std::get_if<ValueUse>(&content_)) {
    visit(*use);
  } else if (auto* list = std::get_if<List>(&content_)) {
    for (BoundArgument& item : list->items) item.ForEachUse(visit);
  }
}

}  // namespace harmony::worker
