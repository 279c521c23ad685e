#include "common/io/resolved_keys_json.h"

#include <nlohmann/json.hpp>

#include "absl/strings/str_cat.h"

namespace harmony::io {
namespace {

// Of gradients: as model/sum_tree.h says.
constexpr char kSumOrder[] = "pairwise";

}  // namespace

job::ResolvedKeys ReadResolvedKeys(const document::JsonField& object) {
  job::ResolvedKeys keys;
  keys.micro_batch_size = object.Get("micro_batch_size").Integer(0);
  if (object.Has("virtual_replicas")) keys.virtual_replicas = object.Get("virtual_replicas").Int(1);
  // Without the field replicas were added up one after the other, which differs from three on.
  const std::string sums = object.Has("sum_order") ? object.Get("sum_order").Text() : "";
  if (object.ok() && sums != kSumOrder && keys.virtual_replicas > 2) {
    object.Get("virtual_replicas")
        .Wrong(absl::StrCat("is ", keys.virtual_replicas,
                            ", and their gradients were added up in another order than this "
                            "version's (sum_order: ",
                            sums.empty() ? "none" : sums, ", here ", kSumOrder,
                            "): the run cannot go on with the same results. Go on with "
                            "the version that began it, or begin a new run from its weights "
                            "(`harmony export`, then init: pretrained)"));
  }
  if (object.Has("gradient_dtype")) {
    keys.gradient_dtype = object.Get("gradient_dtype").Precision();
  }
  return keys;
}

void WriteResolvedKeys(const job::ResolvedKeys& keys, nlohmann::ordered_json& object) {
  object["micro_batch_size"] = keys.micro_batch_size;
  object["virtual_replicas"] = keys.virtual_replicas;
  object["sum_order"] = kSumOrder;
  object["gradient_dtype"] = PrecisionName(keys.gradient_dtype);
}

}  // namespace harmony::io
