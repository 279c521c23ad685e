#include "client/rpc/proto_json.h"

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>

#include "client/rpc/coordinator_client.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::client {
namespace {

TEST(ProtoJson, NumbersStayNumbersAndEnumsBecomeNames) {
  v1::Progress progress;
  progress.set_step(int64_t{1} << 53);
  progress.set_loss(0.1);
  progress.mutable_job()->set_state(v1::JOB_STATE_RUNNING);
  progress.add_messages("a \"quoted\" text");
  progress.add_devices()->set_device(3);
  nlohmann::ordered_json json = ToJson(progress);
  EXPECT_EQ(json["step"].dump(), "9007199254740992");
  EXPECT_EQ(json["loss"].dump(), "0.1");
  EXPECT_EQ(json["job"]["state"], "running");
  EXPECT_EQ(json["messages"].dump(), "[\"a \\\"quoted\\\" text\"]");
  EXPECT_EQ(json["devices"][0]["device"], 3);
  EXPECT_EQ(json["grad_norm"], 0.0) << "unset fields are there too";
  EXPECT_EQ(json["swap_total"]["weights"], 0);
}

TEST(StateName, IsTheStateInLowerCase) {
  EXPECT_EQ(StateName(v1::JOB_STATE_FINISHED), "finished");
  EXPECT_TRUE(IsFinal(v1::JOB_STATE_PAUSED));
  EXPECT_FALSE(IsFinal(v1::JOB_STATE_RECOVERING));
}

}  // namespace
}  // namespace harmony::client
