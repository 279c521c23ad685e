#include "common/profile/profile.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <functional>
#include <nlohmann/json.hpp>

#include "absl/strings/str_replace.h"
#include "common/model/families/causal_lm.h"
#include "common/profile/profile_json.h"
#include "tests/support/sample_profile.h"

namespace harmony::profile {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using Json = nlohmann::ordered_json;

model::ModelSpec Model(const char* preset = "gpt2-mini", DType weights = DType::kF32) {
  return model::BuildModelSpec(*model::ParseModelConfig(*model::PresetConfigJson(preset), preset),
                               64, weights);
}

job::JobSpec Job() {
  job::JobSpec job;
  job.sequence_length = 64;
  job.global_batch_size = 12;
  return job;
}

std::vector<plan::DeviceSpec> Devices() { return *plan::ParseDevices("sim*2:mem=64MiB,flops=20G"); }

std::string SampleText() {
  return ProfileToJson(testing_support::SampleProfile(Model(), Job(), Devices()));
}

TEST(ProfileTest, ComesBackAsItWasWritten) {
  Profile profile = testing_support::SampleProfile(Model(), Job(), Devices());
  profile.in_passing = true;
  const absl::StatusOr<Profile> read = ParseProfile(ProfileToJson(profile), "P.json");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(*read, profile);
  EXPECT_TRUE(CheckProfile(*read, "P.json", Model(), Job(), Devices()).ok());
}

// What a damaged field reads as: the file, the field and what is wrong with it.
struct Damage {
  const char* what;
  std::function<void(Json&)> apply;
  const char* field;
  const char* why;
};

std::vector<Damage> Damages() {
  return {
      {"schema", [](Json& j) { j["schema"] = "harmony-profile/7"; }, "schema", "not known"},
      {"no schema", [](Json& j) { j.erase("schema"); }, "schema", "is missing"},
      {"missing time",
       [](Json& j) { j["devices"][1]["layers"][0]["sizes"][2].erase("backward_s"); },
       "devices[1].layers[0].sizes[2].backward_s", "is missing"},
      {"negative time",
       [](Json& j) { j["devices"][0]["layers"][1]["sizes"][0]["forward_s"]["median"] = -1.5; },
       "devices[0].layers[1].sizes[0].forward_s.median", "above 0, is -1.5"},
      {"null time", [](Json& j) { j["host"]["wake_s"]["median"] = nullptr; }, "host.wake_s.median",
       "finite number, is null"},
      {"text for a time", [](Json& j) { j["host"]["task_s"]["most"] = "NaN"; }, "host.task_s.most",
       "finite number, is NaN"},
      {"link of zero", [](Json& j) { j["devices"][1]["d2h"]["duplex_bytes_per_s"]["median"] = 0; },
       "devices[1].d2h.duplex_bytes_per_s.median", "above 0"},
      {"no p2p", [](Json& j) { j["devices"][1].erase("p2p"); }, "devices[1].p2p", "is missing"},
      {"no memory", [](Json& j) { j["devices"][0]["memory_bytes"] = 0; }, "devices[0].memory_bytes",
       "needs memory"},
      {"another memory", [](Json& j) { j["devices"][0]["memory_bytes"] = 4096; },
       "devices[0].memory_bytes", "spec says"},
      {"spec without memory", [](Json& j) { j["devices"][0]["spec"] = "sim"; }, "devices[0].spec",
       "mem="},
      {"fraction of a byte", [](Json& j) { j["devices"][0]["layers"][0]["parameter_bytes"] = 0.5; },
       "devices[0].layers[0].parameter_bytes", "whole number"},
      {"no devices", [](Json& j) { j["devices"] = Json::array(); }, "devices", "not be empty"},
      {"sizes out of order",
       [](Json& j) { j["devices"][0]["layers"][0]["sizes"][1]["samples"] = 1; },
       "devices[0].layers[0].sizes[1].samples", "ascend"},
      {"unknown field", [](Json& j) { j["host"]["updates"] = 1; }, "host", "'updates'"},
      {"list for an object", [](Json& j) { j["host"] = Json::array(); }, "host", "an object"},
      {"median above most",
       [](Json& j) { j["devices"][0]["layers"][1]["sizes"][0]["forward_s"]["median"] = 2; },
       "devices[0].layers[1].sizes[0].forward_s.median", "above most"},
      {"median below least", [](Json& j) { j["host"]["wake_s"]["median"] = 0; },
       "host.wake_s.median", "below least"},
      {"endless time",
       [](Json& j) { j["devices"][0]["layers"][1]["sizes"][0]["forward_s"]["median"] = 1e300; },
       "devices[0].layers[1].sizes[0].forward_s.median", "at most 86400"},
      {"endless copy",
       [](Json& j) { j["devices"][1]["h2d"]["alone_bytes_per_s"]["median"] = 1e-30; },
       "devices[1].h2d.alone_bytes_per_s.median", "at least 1000"},
      {"together", [](Json& j) { j["devices"][0]["together"] = 1e30; }, "devices[0].together",
       "at most 1000"},
      {"samples", [](Json& j) { j["devices"][0]["layers"][0]["sizes"][2]["samples"] = 1e18; },
       "devices[0].layers[0].sizes[2].samples", "whole number"},
      {"many samples",
       [](Json& j) { j["devices"][0]["layers"][0]["sizes"][2]["samples"] = 1000000000000000000; },
       "devices[0].layers[0].sizes[2].samples", "at most 1048576"},
      {"workspace",
       [](Json& j) {
         j["devices"][0]["layers"][0]["sizes"][2]["forward_workspace_bytes"] = 1000000000000000000;
       },
       "devices[0].layers[0].sizes[2].forward_workspace_bytes", "at most"},
      {"a layer that no int holds",
       [](Json& j) { j["devices"][0]["layers"][0]["layers"][0] = int64_t{1} << 32; },
       "devices[0].layers[0].layers[0]", "at most"},
      {"no kind", [](Json& j) { j["devices"][0]["layers"][0]["kind"] = ""; },
       "devices[0].layers[0].kind", "must not be empty"},
  };
}

TEST(ProfileTest, EveryKindOfDamageIsNamedByFileAndField) {
  for (const Damage& damage : Damages()) {
    Json json = Json::parse(SampleText());
    damage.apply(json);
    const absl::StatusOr<Profile> read = ParseProfile(json.dump(), "dir/P.json");
    EXPECT_TRUE(absl::IsInvalidArgument(read.status())) << damage.what;
    EXPECT_THAT(std::string(read.status().message()),
                AllOf(HasSubstr("dir/P.json: "), HasSubstr(std::string(damage.field) + ": "),
                      HasSubstr(damage.why)))
        << damage.what;
  }
}

TEST(ProfileTest, NumbersThatJsonDoesNotHaveAreNamedByTheirField) {
  for (const char* number : {"NaN", "Infinity", "-Infinity", "1e999", "nan"}) {
    const std::string text = absl::StrReplaceAll(
        SampleText(), {{"\"together\": 1.0", std::string("\"together\": ") + number}});
    const absl::Status status = ParseProfile(text, "P.json").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status)) << number;
    EXPECT_THAT(std::string(status.message()),
                HasSubstr(std::string("P.json: devices[0].together: must be a finite number, is ") +
                          number));
  }
}

TEST(ProfileTest, TextThatIsNoJsonIsRefused) {
  const std::string text = SampleText();
  for (const std::string& damaged :
       {std::string(), std::string("{"), text.substr(0, text.size() / 2), text + "}"}) {
    const absl::Status status = ParseProfile(damaged, "P.json").status();
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr("P.json: "));
  }
}

absl::Status CheckedFor(const model::ModelSpec& model, const job::JobSpec& job,
                        const char* devices) {
  const Profile profile = testing_support::SampleProfile(Model(), Job(), Devices());
  return CheckProfile(profile, "P.json", model, job, *plan::ParseDevices(devices));
}

TEST(ProfileTest, OfAnotherModelJobOrMachineItIsRefusedByField) {
  constexpr char kSame[] = "sim*2:mem=64MiB,flops=20G";
  EXPECT_TRUE(CheckedFor(Model(), Job(), kSame).ok());
  const auto expect = [](const absl::Status& status, const char* field) {
    EXPECT_TRUE(absl::IsInvalidArgument(status));
    EXPECT_THAT(std::string(status.message()), HasSubstr(std::string("P.json: ") + field + ": "));
  };
  expect(CheckedFor(Model("gpt2-124m"), Job(), kSame), "model.fingerprint");
  job::JobSpec job = Job();
  job.sequence_length = 32;
  expect(CheckedFor(Model(), job, kSame), "model.sequence_length");
  job = Job();
  job.compute_threads = 2;
  expect(CheckedFor(Model(), job, kSame), "compute_threads");
  job = Job();
  job.optim = job::OptimizerKind::kSgd;
  expect(CheckedFor(Model(), job, kSame), "host.optimizer");
  expect(CheckedFor(Model(), Job(), "sim*3:mem=64MiB,flops=20G"), "devices");
  expect(CheckedFor(Model(), Job(), "sim:mem=64MiB,flops=20G;sim:mem=32MiB,flops=20G"),
         "devices[1].spec");
}

TEST(ProfileTest, OfTheOtherPrecisionTheRefusalNamesBoth) {
  const absl::Status status =
      CheckedFor(Model("gpt2-mini", DType::kBF16), Job(), "sim*2:mem=64MiB,flops=20G");
  EXPECT_THAT(std::string(status.message()),
              AllOf(HasSubstr("parameters, fp32), this is"), HasSubstr("parameters, bf16);")));
}

TEST(ProfileTest, LayersOfOtherSizesThanTheModelsAreRefusedByField) {
  const auto check = [](const std::function<void(LayerProfile&)>& change) {
    Profile profile = testing_support::SampleProfile(Model(), Job(), Devices());
    change(profile.devices[1].layers[1]);
    return std::string(CheckProfile(profile, "P.json", Model(), Job(), Devices()).message());
  };
  EXPECT_EQ(check([](LayerProfile&) {}), "");
  EXPECT_THAT(check([](LayerProfile& layer) { layer.parameter_bytes += Bytes(4); }),
              HasSubstr("P.json: devices[1].layers[1].parameter_bytes: "));
  EXPECT_THAT(check([](LayerProfile& layer) { layer.sizes[0].forward.reset(); }),
              HasSubstr("P.json: devices[1].layers[1].sizes[0]: forward_s is missing"));
  EXPECT_THAT(check([](LayerProfile& layer) { layer.input_bytes = Bytes(64); }),
              HasSubstr("P.json: devices[1].layers[1].input_bytes_per_sample: "));
  EXPECT_THAT(check([](LayerProfile& layer) { layer.kind = "head"; }),
              HasSubstr("P.json: devices[1].layers[1].kind: "));
}

TEST(ProfileTest, LayersOfOneShapeAreMeasuredOnce) {
  const std::vector<LayerShape> shapes = DistinctLayers(Model("gpt2-124m"));
  ASSERT_EQ(shapes.size(), 3u);
  EXPECT_EQ(shapes[0].name, "embedding");
  EXPECT_THAT(shapes[0].layers, ElementsAre(0));
  EXPECT_EQ(shapes[1].layers.size(), 12u);
  EXPECT_EQ(shapes[2].name, "head");
}

TEST(ProfileTest, SizesAreTheDivisorsOfTheBatchOrTheJobsOwn) {
  job::JobSpec job = Job();
  EXPECT_THAT(ProfiledSizes(job), ElementsAre(1, 2, 3, 4, 6, 12));
  EXPECT_EQ(QuickSize(job), 12);  // of 64 tokens: no smaller divisor has 512
  job.sequence_length = 200;
  EXPECT_EQ(QuickSize(job), 3);
  job.micro_batch_size = 6;
  EXPECT_THAT(ProfiledSizes(job), ElementsAre(6));
}

TEST(ProfileTest, TimesBetweenMeasuredSizesLieOnTheLine) {
  std::vector<LayerSizeProfile> sizes(3);
  const int64_t samples[] = {2, 4, 8};
  const double seconds[] = {1, 2, 3};
  for (int i = 0; i < 3; ++i) {
    sizes[i].samples = samples[i];
    sizes[i].backward = Exactly(seconds[i]);
  }
  const auto time = [](const LayerSizeProfile& size) { return size.backward.median; };
  EXPECT_DOUBLE_EQ(InterpolateSeconds(sizes, 1, time), 0.5);
  EXPECT_DOUBLE_EQ(InterpolateSeconds(sizes, 2, time), 1);
  EXPECT_DOUBLE_EQ(InterpolateSeconds(sizes, 3, time), 1.5);
  EXPECT_DOUBLE_EQ(InterpolateSeconds(sizes, 6, time), 2.5);
  EXPECT_DOUBLE_EQ(InterpolateSeconds(sizes, 16, time), 5);
  sizes.resize(1);
  EXPECT_DOUBLE_EQ(InterpolateSeconds(sizes, 6, time), 3);
}

TEST(ProfileTest, MedianAndSpreadOfRepeats) {
  std::vector<double> odd = {3, 1, 2}, even = {4, 1, 3, 2};
  EXPECT_EQ(MeasuredOf(odd), (Measured{2, 1, 3}));
  EXPECT_EQ(MeasuredOf(even), (Measured{2.5, 1, 4}));
}

TEST(ProfileTest, RequestsAndPartsComeBack) {
  ProfileRequest request;
  request.part = ProfileRequest::Part::kTogether;
  request.job_json = "{\"a\": \"b\"}";
  request.config_json = "{}";
  request.layer = 3;
  request.samples = 4;
  request.output = "out.json";
  const absl::StatusOr<ProfileRequest> read =
      ParseProfileRequest(ProfileRequestToJson(request), "request");
  ASSERT_TRUE(read.ok()) << read.status();
  EXPECT_EQ(read->job_json, request.job_json);
  EXPECT_EQ(read->layer, 3);
  EXPECT_EQ(read->samples, 4);

  const Profile profile = testing_support::SampleProfile(Model(), Job(), Devices());
  using Part = ProfileRequest::Part;
  const auto again = [&](Part part) {
    return *ParseProfilePart(part, ProfilePartToJson(part, profile), "part");
  };
  EXPECT_EQ(again(Part::kVersions).versions, profile.versions);
  EXPECT_EQ(again(Part::kHost).host, profile.host);
  EXPECT_EQ(again(Part::kLayers).devices[0].layers, profile.devices[0].layers);
  EXPECT_EQ(again(Part::kLinks).devices[1].h2d, profile.devices[1].h2d);
}

}  // namespace
}  // namespace harmony::profile
