#include "bench/published_planner/files/profile_json.h"

#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "common/base/status.h"
#include "common/document/strict_json.h"
#include "common/io/file.h"

namespace harmony::published {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxProfileBytes = int64_t{1} << 28;
constexpr absl::string_view kSchema = "layer-profile/1";

// Follows a text to where it stops being JSON, e.g. a NaN, so that the error can name the field.
class FieldFinder : public nlohmann::json_sax<Json> {
 public:
  std::string field() const { return field_; }

  bool null() override { return Value(); }
  bool boolean(bool) override { return Value(); }
  bool number_integer(number_integer_t) override { return Value(); }
  bool number_unsigned(number_unsigned_t) override { return Value(); }
  bool number_float(number_float_t, const string_t&) override { return Value(); }
  bool string(string_t&) override { return Value(); }
  bool binary(binary_t&) override { return Value(); }
  bool start_object(std::size_t) override { return Open(-1); }
  bool start_array(std::size_t) override { return Open(0); }
  bool end_object() override { return Close(); }
  bool end_array() override { return Close(); }
  bool key(string_t& name) override {
    path_.back().key = name;
    return true;
  }
  bool parse_error(std::size_t, const std::string&, const nlohmann::detail::exception&) override {
    for (const Level& level : path_) {
      absl::StrAppend(&field_, level.index >= 0 ? absl::StrCat("[", level.index, "]")
                               : field_.empty() ? level.key
                                                : "." + level.key);
    }
    return false;
  }

 private:
  static constexpr size_t kDeepest = 64;
  struct Level {
    int64_t index = -1;  // of the value that comes next in an array
    std::string key;     // in an object
  };
  bool Value() {
    if (!path_.empty() && path_.back().index >= 0) ++path_.back().index;
    return true;
  }
  bool Open(int64_t index) {
    if (path_.size() == kDeepest) return false;  // no field that anybody would look for
    path_.push_back({index, ""});
    return true;
  }
  bool Close() {
    path_.pop_back();
    return Value();
  }

  std::vector<Level> path_;
  std::string field_;
};

absl::Status Wrong(absl::string_view field, absl::string_view problem) {
  return absl::InvalidArgumentError(absl::StrCat(field, " ", problem));
}

absl::StatusOr<const Json*> Get(const Json& object, absl::string_view field,
                                const std::string& key) {
  if (!object.is_object()) return Wrong(field, "is not an object");
  const auto found = object.find(key);
  if (found == object.end()) return Wrong(field, "is missing");
  return &*found;
}

absl::Status ReadValue(const Json& json, absl::string_view field, std::string* value) {
  if (!json.is_string()) return Wrong(field, "is not a text");
  *value = json.get<std::string>();
  return absl::OkStatus();
}

absl::Status ReadValue(const Json& json, absl::string_view field, double* value) {
  if (!json.is_number()) return Wrong(field, absl::StrCat("is not a number: ", json.dump()));
  *value = json.get<double>();
  return absl::OkStatus();
}

absl::Status ReadValue(const Json& json, absl::string_view field, int64_t* value) {
  if (json.is_number_unsigned() && json.get<uint64_t>() > uint64_t{INT64_MAX}) {
    return Wrong(field, absl::StrCat("is too large: ", json.dump()));
  }
  if (!json.is_number_integer()) {
    return Wrong(field, absl::StrCat("is not a whole number: ", json.dump()));
  }
  *value = json.get<int64_t>();
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadValue(const Json& json, absl::string_view field, std::vector<T>* values) {
  if (!json.is_array()) return Wrong(field, "is not an array");
  values->resize(json.size());
  for (size_t i = 0; i < json.size(); ++i) {
    HARMONY_RETURN_IF_ERROR(ReadValue(json[i], absl::StrCat(field, "[", i, "]"), &(*values)[i]));
  }
  return absl::OkStatus();
}

template <typename T>
absl::Status ReadField(const Json& object, absl::string_view prefix, const std::string& key,
                       T* value) {
  const std::string field = absl::StrCat(prefix, key);
  HARMONY_ASSIGN_OR_RETURN(const Json* json, Get(object, field, key));
  return ReadValue(*json, field, value);
}

absl::Status ReadPhase(const Json& json, const std::string& name, PhaseProfile* phase) {
  HARMONY_ASSIGN_OR_RETURN(const Json* object, Get(json, name, name));
  const std::string prefix = name + ".";
  HARMONY_RETURN_IF_ERROR(ReadField(*object, prefix, "microbatch", &phase->microbatch));
  HARMONY_RETURN_IF_ERROR(ReadField(*object, prefix, "time_s", &phase->time_s));
  return ReadField(*object, prefix, "peak_bytes", &phase->peak_bytes);
}

absl::Status ReadFields(const Json& json, LayerProfile* profile) {
  std::string schema;
  HARMONY_RETURN_IF_ERROR(ReadField(json, "", "schema", &schema));
  if (schema != kSchema) {
    return Wrong("schema", absl::StrCat("is '", schema, "': only '", kSchema, "' can be read"));
  }
  int64_t layers = 0;
  HARMONY_RETURN_IF_ERROR(ReadField(json, "", "layers", &layers));
  HARMONY_RETURN_IF_ERROR(ReadField(json, "", "model", &profile->model));
  HARMONY_RETURN_IF_ERROR(ReadField(json, "", "sample", &profile->sample));
  HARMONY_RETURN_IF_ERROR(ReadField(json, "", "dtype", &profile->dtype));
  HARMONY_RETURN_IF_ERROR(ReadField(json, "", "optimizer", &profile->optimizer));
  const struct {
    const char* key;
    std::vector<int64_t>* values;
  } byte_fields[] = {{"param_bytes", &profile->param_bytes},
                     {"grad_bytes", &profile->grad_bytes},
                     {"buffer_bytes", &profile->buffer_bytes},
                     {"optimizer_state_bytes", &profile->optimizer_state_bytes},
                     {"input_bytes_per_sample", &profile->input_bytes_per_sample},
                     {"output_bytes_per_sample", &profile->output_bytes_per_sample}};
  for (const auto& [key, values] : byte_fields) {
    HARMONY_RETURN_IF_ERROR(ReadField(json, "", key, values));
  }
  HARMONY_RETURN_IF_ERROR(ReadField(json, "", "update_time_s", &profile->update_time_s));
  HARMONY_RETURN_IF_ERROR(ReadPhase(json, "fwd", &profile->forward));
  HARMONY_RETURN_IF_ERROR(ReadPhase(json, "bwd", &profile->backward));
  if (layers != profile->layers()) {
    return Wrong("param_bytes",
                 absl::StrCat("has ", profile->layers(), " entries, but layers is ", layers));
  }
  return CheckProfile(*profile);
}

}  // namespace

absl::StatusOr<LayerProfile> ParseLayerProfile(absl::string_view text, absl::string_view where) {
  absl::StatusOr<Json> json = document::ParseStrictJson(text, where);
  if (!json.ok()) {
    FieldFinder finder;
    Json::sax_parse(text.data(), text.data() + text.size(), &finder);
    if (finder.field().empty()) return json.status();
    return absl::InvalidArgumentError(
        absl::StrCat(where, ": ", finder.field(),
                     " is no JSON value: write a finite number, as measured, where it ",
                     "has NaN, Infinity or one out of range (",
                     absl::StripPrefix(json.status().message(), absl::StrCat(where, ": ")), ")"));
  }
  if (!json->is_object()) return Wrong(where, "is not a JSON object");
  LayerProfile profile;
  HARMONY_RETURN_IF_ERROR_CTX(ReadFields(*json, &profile), where);
  return profile;
}

absl::StatusOr<LayerProfile> ReadLayerProfile(const std::string& path) {
  HARMONY_ASSIGN_OR_RETURN(const std::string text, io::ReadWholeFile(path, kMaxProfileBytes));
  return ParseLayerProfile(text, path);
}

}  // namespace harmony::published
