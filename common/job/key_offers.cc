#include "common/job/key_offers.h"

#include "common/job/job_keys.h"
#include "common/job/key_aliases.h"

namespace harmony::job {

std::vector<KeyOffer> KeyOffers() {
  std::vector<KeyOffer> offers;
  for (const JobKey& key : JobKeys()) {
    const bool is_path = key.type == JobKey::Type::kPath || key.type == JobKey::Type::kModel;
    offers.push_back({key.name,
                      key.values == nullptr ? std::vector<absl::string_view>() : key.values(),
                      is_path});
  }
  offers.push_back({kAppended, {"false", "true"}, /*is_path=*/false});
  offers.push_back({kEpochs, {}, /*is_path=*/false});
  return offers;
}

}  // namespace harmony::job
