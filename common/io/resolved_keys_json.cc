#include "common/io/resolved_keys_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"
#include "common/model/sum_tree.h"

namespace harmony::io {
namespace {

constexpr char kPairwise[] = "pairwise", kInTurn[] = "in turn";

}  // namespace

job::ResolvedKeys ReadResolvedKeys(const document::JsonField& object) {
  job::ResolvedKeys keys;
  keys.micro_batch_size = object.Get("micro_batch_size").Integer(0);
  if (object.Has("virtual_replicas")) keys.virtual_replicas = object.Get("virtual_replicas").Int(1);
  const std::string sums = object.Has("sum_order") ? object.Get("sum_order").Text() : kInTurn;
  if (object.ok() && sums != kPairwise && sums != kInTurn) {
    object.Get("sum_order").Wrong("must be \"pairwise\" or \"in turn\"");
  }
  if (keys.virtual_replicas > 1 && sums == kInTurn) keys.sum_order = job::SumOrder::kInTurn;
  // Versions that added up in turn took any number: such a run can still be read and exported.
  if (object.ok() && sums == kPairwise && !model::IsPowerOfTwo(keys.virtual_replicas)) {
    object.Get("virtual_replicas")
        .Wrong(absl::StrCat("is ", keys.virtual_replicas, "; it must be a power of two"));
  }
  if (object.Has("gradient_dtype")) {
    keys.gradient_dtype = object.Get("gradient_dtype").Precision();
  }
  return keys;
}

void WriteResolvedKeys(const job::ResolvedKeys& keys, nlohmann::ordered_json& object) {
  object["micro_batch_size"] = keys.micro_batch_size;
  object["virtual_replicas"] = keys.virtual_replicas;
  object["sum_order"] = keys.sum_order == job::SumOrder::kPairwise ? kPairwise : kInTurn;
  object["gradient_dtype"] = PrecisionName(keys.gradient_dtype);
}

}  // namespace harmony::io
