#pragma once

// A fingerprint of data, as run.json and checkpoints keep it.

#include <cstdint>
#include <nlohmann/json_fwd.hpp>

#include "common/document/json_fields.h"
#include "common/io/fingerprint.h"

namespace harmony::io {

nlohmann::ordered_json ToJson(const DataFingerprint& fingerprint);
DataFingerprint ReadFingerprint(const document::JsonField& field);

// A hash, in hexadecimal digits.
uint64_t ReadHash(const document::JsonField& field);

}  // namespace harmony::io
