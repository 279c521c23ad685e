#pragma once

// Progress snapshots as text. Pure functions: the same message and width give the same text.

#include <string>
#include <vector>

#include "absl/strings/string_view.h"
#include "harmony/v1/coordinator.pb.h"

namespace harmony::client {

// The frame of the terminal view: no line longer than `width` columns, at most `height` lines.
// Devices take two lines each, or one where the height is short; where there is room below them
// their signs are explained.
std::vector<std::string> RenderFrame(const v1::Progress& progress, int width, int height);

// What to write so that a terminal that shows `shown` lines of a frame, the cursor below them,
// shows `messages` (scrolling) and then `frame`.
std::string Redraw(int shown, const std::vector<std::string>& messages,
                   const std::vector<std::string>& frame);

// One plain line about the last completed step: "step 17/100  loss 5.1234  ...".
std::string RenderStepLine(const v1::Progress& progress);

// What a whole run showed, for the summary at its end.
struct RunSummary {
  v1::Progress last;
  double tokens_per_second = 0;  // median over the steps seen
  int64_t restarts = 0;          // faults that it recovered from
};
// The coordinator's own figures where the job has them, else those of the last snapshot.
std::string RenderSummary(const RunSummary& summary);

// ---- Parts, for other listings ----

// "12 s", "2 min 5 s", "1 h 2 min".
std::string RenderSeconds(double seconds);
// Of bytes per second: "0 B/s", "980 kB/s", "1.25 GB/s"; decimal.
std::string RenderRate(double rate);
// `cells` columns; the parts (shares of 1) in order, each with its own character, the rest ' '.
struct BarPart {
  double share = 0;
  char fill = '#';
};
std::string RenderBar(const std::vector<BarPart>& parts, int cells);

// Columns padded to their widest cell; the first row is the header.
std::string RenderTable(const std::vector<std::vector<std::string>>& rows);

}  // namespace harmony::client
