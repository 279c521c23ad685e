#pragma once

// What model.json and the files of graphs have in common (docs/model_format.md): how both say
// types, extents and one of a few names. For their readers. PURE.

#include <array>
#include <cstddef>
#include <string>

#include "absl/strings/str_cat.h"
#include "absl/strings/string_view.h"
#include "common/base/dtype.h"
#include "common/document/json_fields.h"
#include "common/model/exported_model.h"

namespace harmony::model {

template <typename T>
struct Named {
  absl::string_view name;
  T thing;
};

inline constexpr std::array<Named<DType>, 10> kTensorTypes = {{{"float32", DType::kF32},
                                                               {"bfloat16", DType::kBF16},
                                                               {"float16", DType::kF16},
                                                               {"float64", DType::kF64},
                                                               {"int64", DType::kI64},
                                                               {"int32", DType::kI32},
                                                               {"int16", DType::kI16},
                                                               {"int8", DType::kI8},
                                                               {"uint8", DType::kU8},
                                                               {"bool", DType::kBool}}};

// The thing of the name that a field holds; the first of the table after a mistake.
template <typename T, size_t kCount>
T OneOf(const document::JsonField& field, const std::array<Named<T>, kCount>& known) {
  const std::string text = field.Text();
  std::string names;
  for (const Named<T>& entry : known) {
    if (text == entry.name) return entry.thing;
    absl::StrAppend(&names, names.empty() ? "" : ", ", entry.name);
  }
  if (field.ok()) field.Wrong(absl::StrCat("'", text.substr(0, 100), "' is none of ", names));
  return known[0].thing;
}

// A number, or a text such as "n", "12*n" or "n*s-n". Within what bounds it lies is the caller's
// matter where the length of sequences is free.
Extent ReadExtent(const document::JsonField& field);

}  // namespace harmony::model
