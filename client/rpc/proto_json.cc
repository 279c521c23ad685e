#include "client/rpc/proto_json.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/util/json_util.h>

#include <nlohmann/json.hpp>
#include <string>

#include "absl/strings/ascii.h"
#include "absl/strings/strip.h"

namespace harmony::client {
namespace {

using google::protobuf::EnumDescriptor;
using google::protobuf::FieldDescriptor;
using google::protobuf::Message;
using Json = nlohmann::ordered_json;

// "JOB_STATE_RUNNING" -> "running": what follows the prefix that value 0, JOB_STATE_UNSPECIFIED,
// shows.
std::string EnumText(const EnumDescriptor* type, const std::string& name) {
  const std::string zero = type->value(0)->name();
  const absl::string_view prefix = absl::StripSuffix(zero, "UNSPECIFIED");
  return absl::AsciiStrToLower(absl::StripPrefix(name, prefix));
}

void MakePlain(const google::protobuf::Descriptor* type, Json& json);

void MakeFieldPlain(const FieldDescriptor* field, Json& value) {
  if (value.is_array()) {
    for (Json& item : value) MakeFieldPlain(field, item);
    return;
  }
  const FieldDescriptor::CppType type = field->cpp_type();
  if (type == FieldDescriptor::CPPTYPE_INT64 || type == FieldDescriptor::CPPTYPE_UINT64) {
    value = Json::parse(value.get<std::string>());
  } else if (type == FieldDescriptor::CPPTYPE_ENUM && value.is_string()) {
    value = EnumText(field->enum_type(), value.get<std::string>());
  } else if (type == FieldDescriptor::CPPTYPE_MESSAGE) {
    MakePlain(field->message_type(), value);
  }
}

// Protobuf's mapping writes 64-bit integers as strings and enum values as the .proto has them, and
// leaves out messages that are not set.
void MakePlain(const google::protobuf::Descriptor* type, Json& json) {
  for (auto& [name, value] : json.items()) MakeFieldPlain(type->FindFieldByName(name), value);
  for (int i = 0; i < type->field_count(); ++i) {
    const FieldDescriptor* field = type->field(i);
    if (field->cpp_type() != FieldDescriptor::CPPTYPE_MESSAGE || json.contains(field->name())) {
      continue;
    }
    json[field->name()] =
        ToJson(*google::protobuf::MessageFactory::generated_factory()->GetPrototype(
            field->message_type()));
  }
}

}  // namespace

void DropTexts(Json& job) {
  for (const char* text : {"job_yaml", "plan_text", "summary", "summary_json"}) job.erase(text);
}

Json ToJson(const Message& message) {
  google::protobuf::util::JsonPrintOptions options;
  options.preserve_proto_field_names = true;
  options.always_print_primitive_fields = true;
  std::string text;
  // Fails for messages of unknown types only, of which there are none.
  (void)google::protobuf::util::MessageToJsonString(message, &text, options);
  Json json = Json::parse(text, nullptr, /*allow_exceptions=*/false);
  MakePlain(message.GetDescriptor(), json);
  return json;
}

}  // namespace harmony::client
