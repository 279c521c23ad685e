#include "common/rpc/command_codec.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "absl/strings/ascii.h"
#include "absl/strings/str_cat.h"
#include "harmony/v1/attach.pb.h"

namespace harmony::rpc {
namespace {

using ::testing::HasSubstr;

command::Command Header(uint64_t id) {
  command::Command command;
  command.header.id = id;
  command.header.lane = 3;
  command.header.signal_value = 9;
  command.header.waits = {{1, 4}, {2, 7}};
  command.header.step = 5;
  command.header.expected = Millis(3);
  return command;
}

// Encodes, decodes, encodes again: equal bytes mean that no field was lost on the way.
void ExpectRoundTrip(const command::Command& command) {
  v1::Command wire, again;
  EncodeCommand(command, &wire);
  const auto decoded = DecodeCommand(wire);
  ASSERT_TRUE(decoded.ok()) << decoded.status();
  EncodeCommand(*decoded, &again);
  EXPECT_EQ(wire.SerializeAsString(), again.SerializeAsString());
  EXPECT_EQ(decoded->body.index(), command.body.index());
  EXPECT_EQ(decoded->header.waits, command.header.waits);
}

command::Command FullTask() {
  command::Command command = Header(1);
  command::ComputeTask task;
  task.kind = command::TaskKind::kForwardBackward;
  task.layers = {2, 4};
  task.microbatch = 3;
  task.samples = 2;
  task.weights = {{5, Bytes(64)}, {6, Bytes(128)}};
  task.gradients = {{5, Bytes(256)}};
  task.gradient_stride = Bytes(-1024);
  task.gradient_waits = {{4, 17}};
  task.replica = 3;
  task.first_microbatch = true;
  task.outputs = {{3, Bytes(512)}};
  task.input = Bytes(0);
  task.kept = Bytes(4096);
  task.inputs = {{0, Bytes(512)}, {1, Bytes(1024)}};
  task.loss = Bytes(2048);
  task.total_labels = 77;
  command.body = task;
  return command;
}

command::Command FullTransfer() {
  command::Command command = Header(2);
  command::Transfer transfer;
  transfer.source = {-1, Bytes(64)};
  transfer.destination = {2, Bytes(128)};
  transfer.size = MiB(5);
  transfer.traffic = command::TrafficClass::kBoundaryCommit;
  transfer.commit = command::Commit{11, {command::ObjectKind::kBoundaryGradient, 3, 1}, 6};
  transfer.expect = command::Expect{0, 0};
  transfer.retire = {1, 2};
  command.body = transfer;
  return command;
}

TEST(CommandCodecTest, RoundTripsEveryKind) {
  ExpectRoundTrip(FullTask());
  ExpectRoundTrip(FullTransfer());
  command::Command host = Header(3);
  host.body = command::HostTask{command::HostTaskKind::kUpdate, 4, Bytes(64), {8, 9}};
  ExpectRoundTrip(host);
}

TEST(CommandCodecTest, KeepsAbsentApartFromZero) {
  v1::Command wire;
  EncodeCommand(FullTask(), &wire);
  const auto task = std::get<command::ComputeTask>(DecodeCommand(wire)->body);
  EXPECT_EQ(task.input, Bytes(0));
  EXPECT_FALSE(task.input_gradient.has_value());
  EncodeCommand(FullTransfer(), &wire);
  EXPECT_TRUE(std::get<command::Transfer>(DecodeCommand(wire)->body).expect.has_value());
}

template <typename Change>
std::string RefusalOf(const command::Command& command, Change change) {
  v1::Command wire;
  EncodeCommand(command, &wire);
  change(wire);
  const auto decoded = DecodeCommand(wire);
  EXPECT_EQ(decoded.status().code(), absl::StatusCode::kInvalidArgument);
  return std::string(decoded.status().message());
}

// As a program of another version would send it.
template <typename Wire>
Wire Unknown() {
  return static_cast<Wire>(77);
}

// The wire's enumerations have the numbers of ours: told by the names.
TEST(CommandCodecTest, EnumerationsAgreeByName) {
  for (int i = v1::TrafficClass_MIN; i <= v1::TrafficClass_MAX; ++i) {
    EXPECT_EQ(absl::AsciiStrToUpper(
                  absl::StrCat("traffic_", ToString(static_cast<command::TrafficClass>(i)))),
              v1::TrafficClass_Name(static_cast<v1::TrafficClass>(i)));
  }
  for (int i = v1::UpdateMode_MIN; i <= v1::UpdateMode_MAX; ++i) {
    EXPECT_EQ(
        absl::AsciiStrToUpper(absl::StrCat("update_", ToString(static_cast<job::UpdateMode>(i)))),
        v1::UpdateMode_Name(static_cast<v1::UpdateMode>(i)));
  }
}

TEST(CommandCodecTest, RefusesWhatIsOutOfRangeByName) {
  using W = v1::Command;
  EXPECT_EQ(
      RefusalOf(FullTask(), [](W& w) { w.mutable_compute()->set_kind(Unknown<v1::TaskKind>()); }),
      "command 1: compute.kind is 77, which is no TaskKind");
  EXPECT_EQ(RefusalOf(FullTask(), [](W& w) { w.mutable_compute()->set_last_layer(1); }),
            "command 1: last_layer is 1");
  EXPECT_EQ(RefusalOf(FullTask(), [](W& w) { w.mutable_compute()->set_input(-1); }),
            "command 1: input is -1");
  EXPECT_EQ(RefusalOf(FullTransfer(),
                      [](W& w) { w.mutable_transfer()->set_traffic(Unknown<v1::TrafficClass>()); }),
            "command 2: traffic is 77, which is no TrafficClass");
  EXPECT_EQ(RefusalOf(FullTransfer(), [](W& w) { w.mutable_transfer()->set_size(-5); }),
            "command 2: size is -5");
  EXPECT_EQ(
      RefusalOf(FullTransfer(),
                [](W& w) { w.mutable_transfer()->set_commit_kind(Unknown<v1::ObjectKind>()); }),
      "command 2: commit_kind is 77, which is no ObjectKind");
  EXPECT_EQ(RefusalOf(FullTask(), [](W& w) { w.clear_body(); }), "command 1: no body");
  EXPECT_EQ(RefusalOf(FullTask(), [](W& w) { w.set_signal_value(0); }),
            "command 1: signal_value is 0");
}

plan::Plan SmallPlan() {
  plan::Plan plan;
  plan.num_microbatches = 4;
  plan.microbatch_size = 2;
  plan.sequence_length = 16;
  plan.devices = {{MiB(64), MiB(32)}, {MiB(64), MiB(16)}};
  plan.forward_groups = {{{0, 1}, 0}};
  plan.backward_groups = {{{0, 1}, 1, true, false}, {{2, 3}, 0, false, true, true}};
  plan.update = job::UpdateMode::kDeferred;
  plan.arena_dynamic = MiB(7);
  plan.clip = true;
  plan.optimizer_moments = 0;
  plan.stream_slots = 3;
  plan.gradient_ring = MiB(2);
  plan.boundary_banks = 4;
  plan.microbatches_per_forward_task = 2;
  return plan;
}

TEST(PlanCodecTest, RoundTrips) {
  const std::string bytes = SerializePlan(SmallPlan());
  const auto plan = ParsePlan(bytes);
  ASSERT_TRUE(plan.ok()) << plan.status();
  EXPECT_EQ(SerializePlan(*plan), bytes);
  EXPECT_EQ(plan->backward_groups[1].layers, (model::LayerRange{2, 3}));
  EXPECT_TRUE(plan->backward_groups[0].keep_weights);
  EXPECT_FALSE(plan->backward_groups[1].keep_weights);
  EXPECT_FALSE(plan->backward_groups[0].keep_stash);
  EXPECT_TRUE(plan->backward_groups[1].keep_stash);
  EXPECT_FALSE(plan->backward_groups[0].keep_activations);
  EXPECT_TRUE(plan->backward_groups[1].keep_activations);
  EXPECT_EQ(plan->microbatches_per_forward_task, 2);
  EXPECT_EQ(plan->optimizer_moments, 0);
  EXPECT_EQ(plan->gradient_ring, MiB(2));
}

TEST(PlanCodecTest, RefusesGapsUnknownDevicesAndOpenChoices) {
  plan::Plan plan = SmallPlan();
  plan.backward_groups[1].layers.first = 3;
  EXPECT_THAT(std::string(ParsePlan(SerializePlan(plan)).status().message()),
              HasSubstr("backward_groups.first_layer is 3"));
  plan = SmallPlan();
  plan.forward_groups[0].devices = 2;
  EXPECT_THAT(std::string(ParsePlan(SerializePlan(plan)).status().message()),
              HasSubstr("forward_groups.devices is 2"));
  plan = SmallPlan();
  plan.microbatches_per_forward_task = 3;
  EXPECT_THAT(std::string(ParsePlan(SerializePlan(plan)).status().message()),
              HasSubstr("forward_span is 3"));
  plan = SmallPlan();
  plan.update = job::UpdateMode::kAuto;
  EXPECT_FALSE(ParsePlan(SerializePlan(plan)).ok());
  EXPECT_FALSE(ParsePlan("\xff\xff").ok());
}

TEST(PlanCodecTest, RefusesAStoredPlanThatAddedReplicasUpInAnotherOrder) {
  for (const int replicas : {1, 2}) {
    plan::Plan plan = SmallPlan();
    plan.replicas = replicas;
    v1::Plan wire;
    ASSERT_TRUE(wire.ParseFromString(SerializePlan(plan)));
    wire.clear_pairwise_sums();
    const absl::Status status = DecodePlan(wire).status();
    EXPECT_EQ(status.code(),
              replicas == 1 ? absl::StatusCode::kOk : absl::StatusCode::kFailedPrecondition);
  }
}

}  // namespace
}  // namespace harmony::rpc
