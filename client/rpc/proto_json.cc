#include "client/rpc/proto_json.h"

#include <google/protobuf/descriptor.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/ascii.h"

namespace harmony {
namespace {

using google::protobuf::EnumValueDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using google::protobuf::Reflection;
using Json = nlohmann::ordered_json;

// JOB_STATE_RUNNING of enum JobState -> "running": what follows the prefix that value 0,
// JOB_STATE_UNSPECIFIED, shows.
std::string EnumText(const EnumValueDescriptor* value) {
  std::string zero = value->type()->value(0)->name();
  std::string name = value->name();
  size_t prefix = zero.rfind("UNSPECIFIED");
  if (prefix != std::string::npos && name.size() > prefix) name = name.substr(prefix);
  return absl::AsciiStrToLower(name);
}

// `index` -1: a singular field.
Json FieldValue(const Message& message, const FieldDescriptor* field, int index) {
  const Reflection* get = message.GetReflection();
  bool one = index < 0;
  switch (field->cpp_type()) {
    case FieldDescriptor::CPPTYPE_INT32:
      return one ? get->GetInt32(message, field) : get->GetRepeatedInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_INT64:
      return one ? get->GetInt64(message, field) : get->GetRepeatedInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT32:
      return one ? get->GetUInt32(message, field) : get->GetRepeatedUInt32(message, field, index);
    case FieldDescriptor::CPPTYPE_UINT64:
      return one ? get->GetUInt64(message, field) : get->GetRepeatedUInt64(message, field, index);
    case FieldDescriptor::CPPTYPE_DOUBLE:
      return one ? get->GetDouble(message, field) : get->GetRepeatedDouble(message, field, index);
    case FieldDescriptor::CPPTYPE_FLOAT:
      return one ? get->GetFloat(message, field) : get->GetRepeatedFloat(message, field, index);
    case FieldDescriptor::CPPTYPE_BOOL:
      return one ? get->GetBool(message, field) : get->GetRepeatedBool(message, field, index);
    case FieldDescriptor::CPPTYPE_ENUM:
      return EnumText(one ? get->GetEnum(message, field)
                          : get->GetRepeatedEnum(message, field, index));
    case FieldDescriptor::CPPTYPE_STRING:
      return one ? get->GetString(message, field) : get->GetRepeatedString(message, field, index);
    case FieldDescriptor::CPPTYPE_MESSAGE:
      return ToJson(one ? get->GetMessage(message, field)
                        : get->GetRepeatedMessage(message, field, index));
  }
  return nullptr;
}

}  // namespace

Json ToJson(const Message& message) {
  Json json = Json::object();
  const google::protobuf::Descriptor* type = message.GetDescriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (!field->is_repeated()) {
      json[field->name()] = FieldValue(message, field, -1);
      continue;
    }
    Json list = Json::array();
    int size = message.GetReflection()->FieldSize(message, field);
    for (int k = 0; k < size; ++k) list.push_back(FieldValue(message, field, k));
    json[field->name()] = std::move(list);
  }
  return json;
}

}  // namespace harmony
