#include "coordinator/service/access/rules.h"

#include <gmock/gmock.h>
#include <google/protobuf/descriptor.h>
#include <gtest/gtest.h>

#include "absl/strings/str_cat.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::service {
namespace {

using ::testing::HasSubstr;

constexpr uid_t kOwner = 4000, kOther = 4001;

std::string PathOf(const google::protobuf::MethodDescriptor& method) {
  return absl::StrCat("/", method.service()->full_name(), "/", method.name());
}

// Whoever adds a method decides what it needs.
TEST(AccessTableTest, HasARowForEveryMethodOfThePublicService) {
  const google::protobuf::ServiceDescriptor* const service =
      v1::Job::descriptor()->file()->FindServiceByName("Coordinator");
  ASSERT_NE(service, nullptr);
  for (int i = 0; i < service->method_count(); ++i) {
    EXPECT_TRUE(HasAccessRow(PathOf(*service->method(i)))) << service->method(i)->full_name();
  }
}

TEST(AccessTableTest, WhatIsNotKnownNeedsTheMost) {
  EXPECT_EQ(NeededFor("/harmony.v1.Coordinator/Erase"), Access::kChange);
  EXPECT_EQ(NeededFor("/harmony.v1.Coordinator/"), Access::kChange);
  EXPECT_EQ(NeededFor("/harmony.v1.Coordinator/ListX"), Access::kChange);
  EXPECT_EQ(NeededFor("/harmony.v1.Attach/Attach"), Access::kChange);
  EXPECT_EQ(NeededFor(""), Access::kChange);
  EXPECT_EQ(NeededFor("/grpc.health.v1.Health/Check"), Access::kRead);
}

TEST(AccessRulesTest, OwnerAndRootChangeOthersReadUnlessAllowedMore) {
  const auto rules =
      AccessRules::Parse({"user:4002=change", "group:700=change", "user:4003=read"}, kOwner);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ(rules->OfUser(kOwner, {}), Access::kChange);
  EXPECT_EQ(rules->OfUser(0, {}), Access::kChange);
  EXPECT_EQ(rules->OfUser(kOther, {600}), Access::kRead);
  EXPECT_EQ(rules->OfUser(kOther, {600, 700}), Access::kChange);
  EXPECT_EQ(rules->OfUser(4002, {}), Access::kChange);
  EXPECT_EQ(rules->OfUser(4003, {}), Access::kRead);
}

TEST(AccessRulesTest, ACertificateHasWhatTheBestOfItsNamesHas) {
  const auto rules = AccessRules::Parse(
      {"cert:viewer=read", "cert:spiffe://x/y?a=b=change", "cert:both=change", "cert:both=read"},
      1);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_TRUE(rules->allows_certificates());
  EXPECT_EQ(rules->OfCertificate({}), Access::kNone);
  EXPECT_EQ(rules->OfCertificate({"stranger"}), Access::kNone);
  EXPECT_EQ(rules->OfCertificate({"stranger", "viewer"}), Access::kRead);
  EXPECT_EQ(rules->OfCertificate({"viewer", "spiffe://x/y?a=b"}), Access::kChange);
  EXPECT_EQ(rules->OfCertificate({"both"}), Access::kChange);
  EXPECT_EQ(rules->OfCertificate({"Viewer"}), Access::kNone);
}

TEST(AccessRulesTest, UsersAndGroupsMayBeNamed) {
  const auto rules = AccessRules::Parse({"user:daemon=change", "group:daemon=change"}, kOwner);
  ASSERT_TRUE(rules.ok()) << rules.status();
  EXPECT_EQ(rules->OfUser(1, {}), Access::kChange);
  EXPECT_EQ(rules->OfUser(kOther, {*FindGroup("daemon")}), Access::kChange);
}

TEST(AccessRulesTest, ABadRuleIsNamedWithWhatIsExpected) {
  const std::pair<const char*, const char*> wrong[] = {{"ann", "no rule"},
                                                       {"cert:a", "no rule"},
                                                       {"cert:=read", "nobody is named"},
                                                       {"cert:a=write", "'write'"},
                                                       {"host:a=read", "'host'"},
                                                       {"user:no-such-user=read", "no user"},
                                                       {"group:no-such-group=read", "no group"},
                                                       {"=read", "no rule"}};
  for (const auto& [text, why] : wrong) {
    const auto rules = AccessRules::Parse({text}, kOwner);
    EXPECT_EQ(rules.status().code(), absl::StatusCode::kInvalidArgument) << text;
    EXPECT_THAT(
        std::string(rules.status().message()),
        testing::AllOf(HasSubstr(text), HasSubstr(why), HasSubstr("cert:NAME=read|change")));
  }
}

}  // namespace
}  // namespace harmony::service
