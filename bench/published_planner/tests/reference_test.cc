// Every schedule of a folder of reference data (HARMONY_REFERENCE), by our implementation of the
// published planner's cost model.

#include <gtest/gtest.h>

#include <cstdlib>
#include <map>
#include <nlohmann/json.hpp>

#include "bench/published_planner/cost_model/event_simulator.h"
#include "bench/published_planner/files/profile_json.h"
#include "common/io/file.h"

namespace harmony::published {
namespace {

using Json = nlohmann::json;

constexpr int64_t kMaxFileBytes = 1 << 28;
constexpr double kToleranceSeconds = 1e-9;

std::vector<Pack> Packs(const Json& json) {
  std::vector<Pack> packs;
  for (const Json& pack : json) packs.push_back({pack[0].get<int>(), pack[1].get<int>()});
  return packs;
}

void CheckOne(const LayerProfile& profile, const Json& listed) {
  Machine machine;
  machine.gpus = listed["gpus"].get<int>();
  const Mode mode = ParseMode(listed["mode"].get<std::string>()).value();
  const int64_t minibatch = listed["minibatch"].get<int64_t>();
  const Schedule schedule{listed["u_fwd"].get<int64_t>(), listed["u_bwd"].get<int64_t>(),
                          Packs(listed["pack_fwd"]), Packs(listed["pack_bwd"])};
  const auto off = Simulate(profile, machine, mode, minibatch, schedule, Prefetch::kOff);
  const auto on = Simulate(profile, machine, mode, minibatch, schedule, Prefetch::kOn);
  ASSERT_TRUE(off.ok()) << off.status();
  ASSERT_TRUE(on.ok()) << on.status();
  EXPECT_NEAR(off->time_s, listed["est_time_s"].get<double>(), kToleranceSeconds);
  EXPECT_NEAR(on->time_s, listed["est_time_prefetch_s"].get<double>(), kToleranceSeconds);
  const auto ends = listed["per_rank_end_s"].get<std::vector<double>>();
  ASSERT_EQ(off->gpu_end_s.size(), ends.size());
  for (size_t g = 0; g < ends.size(); ++g) {
    EXPECT_NEAR(off->gpu_end_s[g], ends[g], kToleranceSeconds) << "GPU " << g;
  }
  EXPECT_EQ(off->swap_in_bytes, listed["swap_in_bytes"].get<int64_t>());
  EXPECT_EQ(off->swap_out_bytes, listed["swap_out_bytes"].get<int64_t>());
  EXPECT_EQ(off->peer_bytes, listed["p2p_bytes"].get<int64_t>());
  EXPECT_EQ(off->allreduce_bytes, listed["allreduce_bytes"].get<int64_t>());
  const auto memory = MaxPackMemory(profile, schedule);
  ASSERT_TRUE(memory.ok()) << memory.status();
  EXPECT_EQ(memory->forward_bytes, listed["max_pack_memory_fwd_bytes"].get<int64_t>());
  EXPECT_EQ(memory->backward_bytes, listed["max_pack_memory_bwd_bytes"].get<int64_t>());
}

TEST(ReferenceTest, EveryListedScheduleHasItsListedFigures) {
  const char* folder = std::getenv("HARMONY_REFERENCE");
  if (folder == nullptr || *folder == '\0') {
    GTEST_SKIP() << "HARMONY_REFERENCE names no folder with schedules.json and profiles/";
  }
  const std::string root = folder;
  const auto text = io::ReadWholeFile(root + "/schedules.json", kMaxFileBytes);
  ASSERT_TRUE(text.ok()) << text.status();
  const Json schedules = Json::parse(*text);
  std::map<std::string, LayerProfile> profiles;
  for (const char* list : {"published", "reruns"}) {
    for (const Json& listed : schedules[list]) {
      const std::string model = listed["model"].get<std::string>();
      SCOPED_TRACE(model + " " + listed["mode"].get<std::string>() + " gpus " +
                   listed["gpus"].dump() + " minibatch " + listed["minibatch"].dump() + " " + list);
      if (!profiles.contains(model)) {
        auto profile = ReadLayerProfile(root + "/profiles/" + model + ".json");
        ASSERT_TRUE(profile.ok()) << profile.status();
        profiles[model] = *std::move(profile);
      }
      CheckOne(profiles[model], listed);
    }
  }
}

}  // namespace
}  // namespace harmony::published
