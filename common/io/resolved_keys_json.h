#pragma once

// ResolvedKeys as fields of the objects that keep them.

#include <nlohmann/json_fwd.hpp>

#include "common/document/json_fields.h"
#include "common/job/resolved_keys.h"

namespace harmony::io {

// "micro_batch_size", "virtual_replicas", "sum_order" and "gradient_dtype"; files of before there
// was a choice lack the latter ones.
job::ResolvedKeys ReadResolvedKeys(const document::JsonField& object);
void WriteResolvedKeys(const job::ResolvedKeys& keys, nlohmann::ordered_json& object);

}  // namespace harmony::io
