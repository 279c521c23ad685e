#include "common/io/fingerprint_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/numbers.h"
#include "absl/strings/str_format.h"

namespace harmony::io {

nlohmann::ordered_json ToJson(const DataFingerprint& fingerprint) {
  return {{"bytes", fingerprint.bytes},
          {"hashed_bytes", fingerprint.hashed_bytes},
          {"xxh3", absl::StrFormat("%016x", fingerprint.hash)}};
}

DataFingerprint ReadFingerprint(const document::JsonField& field) {
  field.Only({"bytes", "hashed_bytes", "xxh3"});
  DataFingerprint fingerprint;
  fingerprint.bytes = field.Get("bytes").Integer(0);
  fingerprint.hashed_bytes = field.Get("hashed_bytes").Integer(0);
  fingerprint.hash = ReadHash(field.Get("xxh3"));
  return fingerprint;
}

uint64_t ReadHash(const document::JsonField& field) {
  uint64_t hash = 0;
  if (!absl::SimpleHexAtoi(field.Text(), &hash)) field.Wrong("must be a hexadecimal number");
  return hash;
}

}  // namespace harmony::io
