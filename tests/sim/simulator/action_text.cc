#include "tests/sim/simulator/action_text.h"

#include "absl/strings/str_cat.h"

namespace harmony::sim {
namespace {

std::string Text(const runner::RaiseGeneration& a) { return absl::StrCat("raise ", a.generation); }
std::string Text(const runner::AskQuiesce& a) {
  return absl::StrCat("ask ", DebugString(a.process), " to quiesce for ", a.generation);
}
std::string Text(const runner::KillProcess& a) {
  return absl::StrCat("kill ", DebugString(a.process), ": ", a.reason);
}
std::string Text(const runner::ReadRecords& a) {
  return absl::StrCat("read records ", a.generation);
}
std::string Text(const runner::StartGeneration& a) { return absl::StrCat("start ", a.generation); }
std::string Text(const runner::Send& a) {
  std::string text = absl::StrCat("send to ", DebugString(a.process), " ", a.generation);
  for (const command::Command& command : a.commands)
    absl::StrAppend(&text, "\n  ", DebugString(command));
  return text;
}
std::string Text(const runner::StepCompleted& a) { return absl::StrCat("step completed ", a.step); }
std::string Text(const runner::JobEnded& a) { return absl::StrCat("ended ", a.status.ToString()); }
std::string Text(const runner::Report& a) { return absl::StrCat("report ", a.text); }

}  // namespace

std::string DebugString(const std::vector<runner::Action>& actions) {
  std::string text;
  for (const runner::Action& action : actions) {
    absl::StrAppend(&text, std::visit([](const auto& a) { return Text(a); }, action), "\n");
  }
  return text;
}

}  // namespace harmony::sim
