#include "coordinator/core/recording.h"

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "common/base/status.h"

namespace harmony {
namespace {

std::string ProcessText(const ProcessId& process, uint32_t incarnation) {
  return absl::StrCat(static_cast<int>(process.role), " ", process.device, " ", incarnation);
}

std::string Text(const ProcessAttached& e) {
  return absl::StrCat("attached ", ProcessText(e.process, e.incarnation));
}
std::string Text(const ProcessLost& e) {
  return absl::StrCat("lost ", ProcessText(e.process, e.incarnation));
}
std::string Text(const Quiesced& e) {
  return absl::StrCat("quiesced ", ProcessText(e.process, e.incarnation), " ", e.generation);
}
std::string Text(const RecordsRead& e) {
  std::string text = absl::StrCat("records ", e.generation);
  for (const ObjectView& record : e.records) {
    absl::StrAppend(&text, " ", static_cast<int>(record.key.kind), ",", record.key.index, ",",
                    record.key.microbatch, ",", record.offset.count(), ",", record.size.count(),
                    ",", record.version, ",", static_cast<int>(record.state));
  }
  return text;
}
std::string Text(const LaneProgress& e) {
  return absl::StrCat("progress ", e.generation, " ", e.lane, " ", e.value);
}
std::string Text(const CommandFailed& e) {
  return absl::StrCat("failed ", e.generation, " ", e.lane, " ", e.value, " ",
                      static_cast<int>(e.status.code()), " ", e.status.message());
}
std::string Text(const Tick&) { return "tick"; }
std::string Text(const StopRequested&) { return "stop"; }

std::string Text(const RaiseGeneration& a) { return absl::StrCat("raise ", a.generation); }
std::string Text(const AskQuiesce& a) {
  return absl::StrCat("ask ", DebugString(a.process), " to quiesce for ", a.generation);
}
std::string Text(const KillProcess& a) {
  return absl::StrCat("kill ", DebugString(a.process), ": ", a.reason);
}
std::string Text(const ReadRecords& a) { return absl::StrCat("read records ", a.generation); }
std::string Text(const StartGeneration& a) { return absl::StrCat("start ", a.generation); }
std::string Text(const Send& a) {
  std::string text = absl::StrCat("send to ", DebugString(a.process), " ", a.generation);
  for (const Command& command : a.commands) absl::StrAppend(&text, "\n  ", DebugString(command));
  return text;
}
std::string Text(const StepCompleted& a) { return absl::StrCat("step completed ", a.step); }
std::string Text(const JobEnded& a) { return absl::StrCat("ended ", a.status.ToString()); }
std::string Text(const Report& a) { return absl::StrCat("report ", a.text); }

// Reads one line's words in order.
class Words {
 public:
  explicit Words(absl::string_view line) : words_(absl::StrSplit(line, ' ')) {}
  bool Next(absl::string_view& word) {
    if (at_ >= words_.size()) return false;
    word = words_[at_++];
    return true;
  }
  template <typename T>
  bool Number(T& value) {
    absl::string_view word;
    int64_t number = 0;
    if (!Next(word) || !absl::SimpleAtoi(word, &number)) return false;
    value = static_cast<T>(number);
    return true;
  }
  bool Process(ProcessId& process, uint32_t& incarnation) {
    int role = 0;
    if (!Number(role) || role < 0 || role > static_cast<int>(Role::kWorker)) return false;
    process.role = static_cast<Role>(role);
    return Number(process.device) && Number(incarnation);
  }
  std::string Rest() {
    std::string text;
    for (absl::string_view word; Next(word);) absl::StrAppend(&text, text.empty() ? "" : " ", word);
    return text;
  }

 private:
  std::vector<absl::string_view> words_;
  size_t at_ = 0;
};

bool ReadRecord(absl::string_view word, ObjectView& record) {
  const std::vector<absl::string_view> parts = absl::StrSplit(word, ',');
  int64_t n[7];
  if (parts.size() != 7) return false;
  for (size_t i = 0; i < 7; ++i) {
    if (!absl::SimpleAtoi(parts[i], &n[i])) return false;
  }
  record.key = {static_cast<ObjectKind>(n[0]), static_cast<int32_t>(n[1]),
                static_cast<int32_t>(n[2])};
  record.offset = Bytes(n[3]);
  record.size = Bytes(n[4]);
  record.version = static_cast<uint64_t>(n[5]);
  record.state = static_cast<ObjectState>(n[6]);
  return true;
}

template <typename T>
bool ReadMember(Words& words, Event& event) {
  T e;
  const bool good = words.Process(e.process, e.incarnation);
  event = e;
  return good;
}

bool ReadEvent(Words& words, Event& event) {
  absl::string_view kind;
  if (!words.Next(kind)) return false;
  if (kind == "attached") return ReadMember<ProcessAttached>(words, event);
  if (kind == "lost") return ReadMember<ProcessLost>(words, event);
  if (kind == "quiesced") {
    Quiesced e;
    const bool good = words.Process(e.process, e.incarnation) && words.Number(e.generation);
    event = e;
    return good;
  }
  if (kind == "records") {
    RecordsRead e;
    if (!words.Number(e.generation)) return false;
    for (absl::string_view word; words.Next(word);) {
      if (!ReadRecord(word, e.records.emplace_back())) return false;
    }
    event = std::move(e);
    return true;
  }
  if (kind == "progress") {
    LaneProgress e;
    const bool good = words.Number(e.generation) && words.Number(e.lane) && words.Number(e.value);
    event = e;
    return good;
  }
  if (kind == "failed") {
    CommandFailed e;
    int code = 0;
    const bool good = words.Number(e.generation) && words.Number(e.lane) && words.Number(e.value) &&
                      words.Number(code);
    e.status = absl::Status(static_cast<absl::StatusCode>(code), words.Rest());
    event = std::move(e);
    return good;
  }
  event = Tick{};
  if (kind == "tick") return true;
  event = StopRequested{};
  return kind == "stop";
}

}  // namespace

std::string DebugString(const Event& event) {
  return std::visit([](const auto& e) { return Text(e); }, event);
}

std::string DebugString(const std::vector<Action>& actions) {
  std::string text;
  for (const Action& action : actions) {
    absl::StrAppend(&text, std::visit([](const auto& a) { return Text(a); }, action), "\n");
  }
  return text;
}

std::string WriteRecording(const Recording& recording) {
  std::string text;
  for (const auto& [at, event] : recording) {
    absl::StrAppend(&text, at.count(), " ", DebugString(event), "\n");
  }
  return text;
}

absl::StatusOr<Recording> ReadRecording(absl::string_view text) {
  Recording recording;
  int number = 0;
  for (absl::string_view line : absl::StrSplit(text, '\n')) {
    ++number;
    if (line.empty()) continue;
    Words words(line);
    int64_t at = 0;
    Event event;
    if (!words.Number(at) || !ReadEvent(words, event)) {
      return absl::InvalidArgumentError(absl::StrCat("line ", number, " of the recording: ", line));
    }
    recording.emplace_back(Nanos(at), std::move(event));
  }
  return recording;
}

}  // namespace harmony
