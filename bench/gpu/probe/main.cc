// Answers on a GPU machine what the design of Harmony's CUDA devices rests on: who should copy,
// whether a region of device memory outlives its users, what dies with a process
// (bench/gpu/README.md).
//
//   probe [--parts 2,5,6] [--json FILE] [--quick] [--device N] [--cublas PATH]

#include <signal.h>
#include <sys/prctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <sstream>

#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

constexpr int kNothingToMeasure = 2;
constexpr char kUsage[] =
    "usage: probe [--parts 2,5,6] [--json FILE] [--quick] [--device N] [--cublas PATH]\n";

struct CommandLine {
  std::set<int> parts;  // empty: all
  std::string json;     // empty: standard output
  std::string role;     // empty: the main process
  Arguments arguments;  // of the role
  bool good = true;
};

CommandLine Parse(int count, char** words) {
  CommandLine line;
  for (int i = 1; i < count; ++i) {
    const std::string word = words[i];
    const bool more = i + 1 < count;
    if (word == "--quick") {
      TheSettings().quick = true;
    } else if (word == "--") {
      line.arguments.assign(words + i + 1, words + count);
      return line;
    } else if (word == "--parts" && more) {
      std::istringstream list(words[++i]);
      for (std::string part; std::getline(list, part, ',');) {
        const int number = atoi(part.c_str());
        line.good = line.good && number >= 1 && number <= static_cast<int>(Parts().size());
        line.parts.insert(number);
      }
    } else if (word == "--json" && more) {
      line.json = words[++i];
    } else if (word == "--device" && more) {
      TheSettings().device = atoi(words[++i]);
    } else if (word == "--cublas" && more) {
      TheSettings().cublas = words[++i];
    } else if (word == "--role" && more) {
      line.role = words[++i];
    } else {
      line.good = false;
    }
  }
  return line;
}

// What is known of a part; `json` has an entry for each result.
struct PartRecord {
  std::string status = "ended without an answer";
  double seconds = 0;
  std::vector<std::string> results, verdicts;
};

void Note(const std::string& text, PartRecord& record, bool& over) {
  std::vector<std::string> fields;
  std::istringstream stream(text);
  for (std::string field; std::getline(stream, field, '\t');) fields.push_back(field);
  if (fields.empty()) return;
  if (fields[0] == "done") {
    record.status = "measured";
    over = true;
  } else if (fields[0] == "fail") {
    record.status = "failed: " + text.substr(5);
    over = true;
  } else if (fields.size() >= 3) {
    const bool verdict = fields[0] == "verdict";
    (verdict ? record.verdicts : record.results)
        .push_back(JsonString(fields[1]) + ": " + fields[2]);
    printf("  %s%-58s %s\n", verdict ? "> " : "  ", fields[1].c_str(),
           fields.size() > 3 ? fields[3].c_str() : "");
    fflush(stdout);
  }
}

PartRecord RunPart(const Part& part) {
  printf("\n%d. %s: %s\n", part.number, part.name, part.question);
  fflush(stdout);
  PartRecord record;
  const double begin = NowSeconds();
  {
    const Process process("part", {std::to_string(part.number)});
    bool over = false;
    while (!over) {
      const double left = begin + part.limit_seconds - NowSeconds();
      if (left <= 0 || !process.channel().Readable(static_cast<int>(left * 1e3) + 1)) {
        record.status = Format("hung: killed after %.0f s", part.limit_seconds);
        break;
      }
      const Message message = process.channel().Receive();
      if (message.ended) break;
      Note(message.text, record, over);
    }
  }  // kills what is left of it
  record.seconds = NowSeconds() - begin;
  printf("  %s, %.1f s\n", record.status.c_str(), record.seconds);
  return record;
}

std::string Joined(const std::vector<std::string>& entries) {
  std::string text;
  for (const std::string& entry : entries) text += (text.empty() ? "" : ",\n      ") + entry;
  return text;
}

std::string Json(const std::vector<std::pair<const Part*, PartRecord>>& records) {
  std::string text = "{\n  \"format\": 1,\n  \"quick\": ";
  text += TheSettings().quick ? "true" : "false";
  text += Format(",\n  \"device\": %d,\n  \"parts\": {", TheSettings().device);
  bool first = true;
  for (const auto& [part, record] : records) {
    text += first ? "\n" : ",\n";
    first = false;
    text +=
        "    " + JsonString(part->name) + ": {\n      \"status\": " + JsonString(record.status) +
        Format(",\n      \"seconds\": %.3f", record.seconds) + ",\n      \"verdicts\": {\n      " +
        Joined(record.verdicts) + "\n      },\n      \"results\": {\n      " +
        Joined(record.results) + "\n      }\n    }";
  }
  return text + "\n  }\n}\n";
}

bool Write(const std::string& json, const std::string& path) {
  if (path.empty()) {
    printf("\n%s", json.c_str());
    return true;
  }
  FILE* file = fopen(path.c_str(), "w");
  if (file == nullptr) return false;
  const bool written = fputs(json.c_str(), file) >= 0;
  return fclose(file) == 0 && written;
}

// Empty, or why nothing can be measured here.
std::string WhyNot() {
  const Process check("check", {});
  const Message answer = check.channel().Receive();
  if (answer.ended) return "the CUDA driver ended the process that started it";
  return answer.text.rfind("fail\t", 0) == 0 ? answer.text.substr(5) : "";
}

int RunAll(const CommandLine& line) {
  const std::string why_not = WhyNot();
  if (!why_not.empty()) {
    fprintf(stderr, "probe: nothing to measure on this machine: %s\n", why_not.c_str());
    return kNothingToMeasure;
  }
  std::vector<std::pair<const Part*, PartRecord>> records;
  bool all_measured = true;
  for (const Part& part : Parts()) {
    if (!line.parts.empty() && line.parts.count(part.number) == 0) continue;
    records.emplace_back(&part, RunPart(part));
    all_measured = all_measured && records.back().second.status == "measured";
  }
  if (!Write(Json(records), line.json)) {
    fprintf(stderr, "probe: cannot write %s\n", line.json.c_str());
    return 1;
  }
  return all_measured ? 0 : 1;
}

int Main(int count, char** words) {
  const CommandLine line = Parse(count, words);
  if (!line.good) {
    fputs(kUsage, stderr);
    return 1;
  }
  // Short naps are short: 50 us of slack would be added otherwise.
  prctl(PR_SET_TIMERSLACK, 1);
  if (line.role.empty()) {
    prctl(PR_SET_CHILD_SUBREAPER, 1);
    return RunAll(line);
  }
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  // What a part starts ends with it, also when the part is killed.
  if (line.role == "part") setpgid(0, 0);
  return RunRole(line.role, line.arguments);
}

}  // namespace
}  // namespace harmony::bench

int main(int count, char** words) { return harmony::bench::Main(count, words); }
