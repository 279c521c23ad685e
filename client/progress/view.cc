#include "client/progress/view.h"

#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <nlohmann/json.hpp>
#include <vector>

#include "absl/strings/numbers.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/strip.h"
#include "client/progress/render.h"
#include "client/rpc/coordinator_client.h"
#include "client/rpc/proto_json.h"
#include "common/base/clock.h"
#include "common/document/json_line.h"
#include "common/document/yaml_document.h"

namespace harmony::client {
namespace {

class TerminalView : public ProgressView {
 public:
  using ProgressView::ProgressView;
  void Show(const v1::Progress& progress) override {
    // Steps may be far quicker than eyes; a new state or a message is shown at once.
    Nanos now = MonotonicClock().Now();
    bool news = progress.messages_size() > 0 || progress.job().state() != state_;
    if (!news && now - drawn_at_ < kLeastTimeBetweenFrames) return;
    drawn_at_ = now;
    state_ = progress.job().state();
    winsize size = {};
    if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) != 0 || size.ws_col == 0) size = {24, 80, 0, 0};
    // The last column and the last line stay free, so that nothing wraps or scrolls.
    frame_ = RenderFrame(progress, size.ws_col - 1, std::max(size.ws_row - 1, 1));
    Draw({progress.messages().begin(), progress.messages().end()});
  }
  void Message(absl::string_view text) override { Draw({std::string(text)}); }

 private:
  static constexpr Nanos kLeastTimeBetweenFrames = Millis(100);

  void Draw(const std::vector<std::string>& messages) {
    Write(Redraw(shown_, messages, frame_));
    shown_ = static_cast<int>(frame_.size());
  }

  std::vector<std::string> frame_;
  int shown_ = 0;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
  Nanos drawn_at_;
};

class PlainView : public ProgressView {
 public:
  PlainView(int interrupt, int64_t logging_steps)
      : ProgressView(interrupt), logging_steps_(std::max<int64_t>(logging_steps, 1)) {}

  void Show(const v1::Progress& progress) override {
    for (const std::string& message : progress.messages()) Message(message);
    if (progress.job().state() != state_) {
      state_ = progress.job().state();
      if (state_ == v1::JOB_STATE_QUEUED || state_ == v1::JOB_STATE_STARTING ||
          state_ == v1::JOB_STATE_RECOVERING || state_ == v1::JOB_STATE_STOPPING) {
        Message(StateName(state_));
      }
    }
    // A snapshot may have jumped over a step that was due.
    bool due = progress.step() / logging_steps_ > printed_ / logging_steps_ ||
               progress.step() == progress.job().max_steps();
    if (progress.step() == printed_ || progress.step() <= 0 || !due) return;
    printed_ = progress.step();
    // Where a resumed run starts: nothing has been measured yet.
    if (progress.tokens_per_second() <= 0 && !IsFinal(state_)) return;
    Write(RenderStepLine(progress) + "\n");
  }
  void Message(absl::string_view text) override { Write(absl::StrCat(text, "\n")); }

 private:
  int64_t logging_steps_;
  int64_t printed_ = 0;
  v1::JobState state_ = v1::JOB_STATE_UNSPECIFIED;
};

class JsonView : public ProgressView {
 public:
  using ProgressView::ProgressView;
  void Show(const v1::Progress& progress) override {
    nlohmann::ordered_json line;
    line["type"] = "progress";
    line.update(ToJson(progress));
    DropTexts(line["job"]);
    Write(document::JsonLine(line));
  }
  void Message(absl::string_view text) override {
    Write(document::JsonLine({{"type", "message"}, {"message", std::string(text)}}));
  }
};

}  // namespace

std::unique_ptr<ProgressView> MakeProgressView(bool json, int64_t logging_steps, int interrupt) {
  if (json) return std::make_unique<JsonView>(interrupt);
  const char* terminal = getenv("TERM");
  bool dumb = terminal == nullptr || absl::string_view(terminal) == "dumb";
  if (isatty(STDOUT_FILENO) && !dumb) return std::make_unique<TerminalView>(interrupt);
  return std::make_unique<PlainView>(interrupt, logging_steps);
}

int64_t LoggingStepsOf(const std::string& job_yaml, const std::vector<std::string>& overrides) {
  int64_t steps = 1;
  const absl::StatusOr<YAML::Node> root = document::ParseYaml(job_yaml, "job");
  const YAML::Node given = root.ok() && root->IsMap() ? (*root)["logging_steps"] : YAML::Node();
  if (given.IsDefined() && given.IsScalar()) (void)absl::SimpleAtoi(given.Scalar(), &steps);
  for (absl::string_view text : overrides) {
    if (absl::ConsumePrefix(&text, "logging_steps=")) (void)absl::SimpleAtoi(text, &steps);
  }
  return std::max<int64_t>(steps, 1);
}

}  // namespace harmony::client
