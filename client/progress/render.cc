#include "client/progress/render.h"

#include <algorithm>
#include <cmath>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/rpc/coordinator_client.h"
#include "common/base/units.h"

namespace harmony::client {
namespace {

// In columns; what is usual fits a terminal of 80.
constexpr int kBarOfJob = 24, kBarOfDevice = 8;

// Two spaces end a part of a line: of a line that is too long the last parts go as a whole, so that
// no number loses digits, but for one that would leave little of it.
std::string Fit(std::string line, int width) {
  const size_t most = std::max(width, 0);
  if (line.size() <= most) return line;
  const size_t gap = line.rfind("  ", most);
  line.resize(gap == std::string::npos || gap < most / 2 ? most : gap);
  return line;
}

std::string RenderTokenRate(double rate, const v1::Progress& progress) {
  const char* const unit = progress.tokens_per_sample() == 1 ? "samples" : "tokens";
  return rate >= 100 ? absl::StrFormat("%.0f %s/s", rate, unit)
                     : absl::StrFormat("%.1f %s/s", rate, unit);
}

double Share(int64_t part, int64_t whole) {
  return whole > 0 ? static_cast<double>(part) / static_cast<double>(whole) : 0;
}

// Over CPU-GPU links; what devices send each other is no swap.
int64_t TotalSwap(const v1::SwapBytes& swap) {
  return swap.weights() + swap.gradients() + swap.stash() + swap.boundary_commit() + swap.tokens() +
         swap.loss() + swap.recovery();
}

std::string StepOf(const v1::Progress& progress) {
  return absl::StrCat("step ", progress.step(), "/", progress.job().max_steps());
}

std::string TimeLeft(const v1::Progress& progress) {
  if (progress.seconds_left() <= 0) return "";
  return absl::StrCat("  ", RenderSeconds(progress.seconds_left()), " left");
}

// What is known of the last completed step, each part behind two spaces; empty where there is none.
std::string StepNumbers(const v1::Progress& progress) {
  if (progress.step() <= 0) return "";
  std::string text = absl::StrFormat("  loss %.4f", progress.loss());
  if (progress.tokens_per_second() <= 0) return text;
  absl::StrAppendFormat(&text, "  lr %.3g  ", progress.learning_rate());
  absl::StrAppend(&text, RenderTokenRate(progress.tokens_per_second(), progress));
  return text;
}

std::string StepTime(const v1::Progress& progress) {
  if (progress.predicted_seconds_per_step() <= 0 || progress.seconds_per_step() <= 0) return "";
  std::string text = absl::StrFormat("  step %.3g s, planned %.3g s", progress.seconds_per_step(),
                                     progress.predicted_seconds_per_step());
  if (progress.drift() != 0) absl::StrAppendFormat(&text, " (%+.0f%%)", progress.drift() * 100);
  if (progress.suggested_seconds_per_step() > 0) {
    absl::StrAppendFormat(&text, ", by another plan %.3g s", progress.suggested_seconds_per_step());
  }
  return text;
}

std::string SwapPart(const v1::Progress& progress) {
  const int64_t swap = TotalSwap(progress.swap_last_step());
  return swap > 0 ? absl::StrCat("  swap ", FormatBytes(Bytes(swap)), "/step") : "";
}

std::string HostMemory(const v1::Progress& progress) {
  if (progress.host_capacity() <= 0) return "";
  return absl::StrCat("  host memory ", FormatBytes(Bytes(progress.host_bytes())), " of ",
                      FormatBytes(Bytes(progress.host_capacity())));
}

std::string Faults(const v1::Progress& progress) {
  if (progress.faults() <= 0) return "";
  return absl::StrCat("  recovered from ", progress.faults(),
                      progress.faults() == 1 ? " fault" : " faults");
}

// The job as a whole. Each part begins with two spaces; lines without parts are left out.
std::vector<std::string> HeadLines(const v1::Progress& progress) {
  const double share = Share(progress.step(), progress.job().max_steps());
  std::vector<std::string> lines = {
      absl::StrCat(progress.job().job_id(), "  ", StateName(progress.job().state()), "  ",
                   StepOf(progress), StepNumbers(progress)),
      absl::StrFormat("[%s] %3.0f%%%s%s", RenderBar({{share, '#'}}, kBarOfJob), share * 100,
                      TimeLeft(progress), SwapPart(progress))};
  for (const std::string& line :
       {absl::StrCat(StepTime(progress), HostMemory(progress)), Faults(progress)}) {
    if (!line.empty()) lines.push_back(line.substr(2));
  }
  return lines;
}

std::string MemoryBar(const v1::DeviceProgress& device, int cells) {
  return RenderBar({{Share(device.resident_bytes(), device.memory_cap()), '#'},
                    {Share(device.workspace_peak(), device.memory_cap()), '+'}},
                   cells);
}

std::string TimeBar(const v1::DeviceProgress& device, int cells) {
  return RenderBar(
      {{device.computing_share(), '#'}, {device.waiting_share(), '-'}, {device.idle_share(), '.'}},
      cells);
}

// "384/512 MiB": both in the unit of the second.
std::string PartOf(int64_t part, int64_t whole) {
  const char* unit = "MiB";
  double divisor = 1 << 20;
  int digits = 0;
  if (whole >= GiB(4).count()) {
    unit = "GiB";
    divisor = 1 << 30;
    digits = 1;
  } else if (whole < MiB(4).count()) {
    unit = "KiB";
    divisor = 1 << 10;
  }
  return absl::StrFormat("%.*f/%.*f %s", digits, static_cast<double>(part) / divisor, digits,
                         static_cast<double>(whole) / divisor, unit);
}

std::string MemoryPart(const v1::DeviceProgress& device) {
  return absl::StrFormat("memory [%s]", MemoryBar(device, kBarOfDevice));
}

std::string TimePart(const v1::DeviceProgress& device) {
  return absl::StrFormat("time [%s]", TimeBar(device, kBarOfDevice));
}

std::string Name(const v1::DeviceProgress& device) {
  return absl::StrFormat("device %-2d %-7s", device.device(), device.state());
}

std::string DeviceHead(const v1::DeviceProgress& device) {
  std::string line =
      absl::StrCat(Name(device), " ", MemoryPart(device), " ",
                   PartOf(device.resident_bytes() + device.workspace_peak(), device.memory_cap()),
                   "  in ", RenderRate(device.h2d_bytes_per_second()), "  out ",
                   RenderRate(device.d2h_bytes_per_second()));
  if (device.p2p_bytes_per_second() > 0) {
    absl::StrAppend(&line, "  to devices ", RenderRate(device.p2p_bytes_per_second()));
  }
  return line;
}

std::string DeviceDetails(const v1::DeviceProgress& device) {
  return absl::StrFormat("    %s %.0f%% %s", TimePart(device), device.computing_share() * 100,
                         device.current());
}

// What the GPU says of itself as a whole; empty where it says nothing. Each part stands behind two
// spaces, what a narrow terminal can do without last.
std::string GpuLine(const v1::GpuReadings& gpu) {
  std::string parts;
  if (gpu.has_temperature_celsius()) {
    absl::StrAppend(&parts, "  ", gpu.temperature_celsius(), " C");
  }
  if (gpu.has_sm_clock_mhz()) absl::StrAppend(&parts, "  SM ", gpu.sm_clock_mhz(), " MHz");
  if (gpu.has_pcie_in_bytes_per_second() && gpu.has_pcie_out_bytes_per_second()) {
    absl::StrAppend(&parts, "  PCIe in ",
                    RenderRate(static_cast<double>(gpu.pcie_in_bytes_per_second())), " out ",
                    RenderRate(static_cast<double>(gpu.pcie_out_bytes_per_second())));
  }
  if (gpu.has_memory_used_bytes() && gpu.has_memory_bytes()) {
    absl::StrAppend(&parts, "  ", PartOf(gpu.memory_used_bytes(), gpu.memory_bytes()));
  }
  if (gpu.has_memory_clock_mhz()) {
    absl::StrAppend(&parts, "  memory ", gpu.memory_clock_mhz(), " MHz");
  }
  return parts.empty() ? "" : absl::StrCat("    GPU", parts);
}

std::string DeviceShort(const v1::DeviceProgress& device) {
  return absl::StrCat(Name(device), " ", MemoryPart(device), " ", TimePart(device), " ",
                      device.current());
}

constexpr char kLegend[] = "memory: # data  + workspace   time: # computing  - waiting  . idle";

struct SwapClass {
  const char* name;
  int64_t total, last, minimum;
};

std::vector<SwapClass> SwapClasses(const v1::Progress& progress) {
  const v1::SwapBytes &total = progress.swap_total(), &last = progress.swap_last_step(),
                      &minimum = progress.swap_minimum_per_step();
  return {
      {"weights", total.weights(), last.weights(), minimum.weights()},
      {"gradients", total.gradients(), last.gradients(), minimum.gradients()},
      {"stash", total.stash(), last.stash(), minimum.stash()},
      {"boundary_commit", total.boundary_commit(), last.boundary_commit(),
       minimum.boundary_commit()},
      {"boundary (p2p)", total.boundary(), last.boundary(), minimum.boundary()},
      {"tokens", total.tokens(), last.tokens(), minimum.tokens()},
      {"loss", total.loss(), last.loss(), minimum.loss()},
      {"recovery", total.recovery(), last.recovery(), minimum.recovery()},
  };
}

std::string SwapTable(const v1::Progress& progress) {
  std::vector<std::vector<std::string>> rows = {
      {"swap", "total", "last step", "minimum a step", "ratio"}};
  for (const SwapClass& row : SwapClasses(progress)) {
    if (row.total == 0 && row.minimum == 0) continue;
    rows.push_back({row.name, FormatBytes(Bytes(row.total)), FormatBytes(Bytes(row.last)),
                    row.minimum > 0 ? FormatBytes(Bytes(row.minimum)) : "-",
                    row.minimum > 0 ? absl::StrFormat("%.2f", Share(row.last, row.minimum)) : "-"});
  }
  return rows.size() > 1 ? RenderTable(rows) : "";
}

std::string PeakTable(const v1::Progress& progress) {
  std::vector<std::vector<std::string>> rows = {{"device", "peak memory", "cap", "used"}};
  for (const v1::DeviceProgress& device : progress.devices()) {
    rows.push_back(
        {absl::StrCat(device.device(), " ", device.spec()), FormatBytes(Bytes(device.peak_bytes())),
         FormatBytes(Bytes(device.memory_cap())),
         absl::StrFormat("%.0f%%", Share(device.peak_bytes(), device.memory_cap()) * 100)});
  }
  return rows.size() > 1 ? RenderTable(rows) : "";
}

}  // namespace

std::vector<std::string> RenderFrame(const v1::Progress& progress, int width, int height) {
  std::vector<std::string> lines = HeadLines(progress);
  const int left = height - static_cast<int>(lines.size());
  const int64_t gpus = std::count_if(
      progress.devices().begin(), progress.devices().end(),
      [](const v1::DeviceProgress& device) { return !GpuLine(device.gpu()).empty(); });
  const bool tall = progress.devices_size() * 2 <= left;
  // With the legend below them.
  const bool taller = progress.devices_size() * 2 + gpus < left;
  for (int i = 0; i < progress.devices_size(); ++i) {
    const v1::DeviceProgress& device = progress.devices(i);
    if (tall) {
      lines.push_back(DeviceHead(device));
      lines.push_back(DeviceDetails(device));
      if (std::string line = GpuLine(device.gpu()); taller && !line.empty()) {
        lines.push_back(std::move(line));
      }
    } else if (static_cast<int>(lines.size()) + 1 < height || i + 1 == progress.devices_size()) {
      lines.push_back(DeviceShort(device));
    } else {
      lines.push_back(absl::StrCat("    and ", progress.devices_size() - i, " more devices"));
      break;
    }
  }
  if (progress.devices_size() > 0) lines.emplace_back(kLegend);
  if (static_cast<int>(lines.size()) > height) lines.resize(std::max(height, 0));
  for (std::string& line : lines) line = Fit(std::move(line), width);
  return lines;
}

std::string Redraw(int shown, const std::vector<std::string>& messages,
                   const std::vector<std::string>& frame) {
  std::string text;
  if (shown > 0) absl::StrAppend(&text, "\x1b[", shown, "A\r");
  // Line by line, and only then what stands below: of a screen that is cleared from its top
  // terminals keep what was there in their history, and that would be a frame each time.
  for (const std::string& line : messages) absl::StrAppend(&text, line, "\x1b[K\n");
  for (const std::string& line : frame) absl::StrAppend(&text, line, "\x1b[K\n");
  absl::StrAppend(&text, "\x1b[J");
  return text;
}

std::string RenderStepLine(const v1::Progress& progress) {
  std::string line = absl::StrCat(StepOf(progress), StepNumbers(progress), TimeLeft(progress));
  if (progress.grad_norm() > 0) absl::StrAppendFormat(&line, "  norm %.4g", progress.grad_norm());
  if (int64_t swap = TotalSwap(progress.swap_last_step()); swap > 0) {
    absl::StrAppend(&line, "  swap ", FormatBytes(Bytes(swap)));
  }
  return line;
}

std::string RenderSummary(const RunSummary& summary) {
  const v1::Job& job = summary.last.job();
  bool own = job.summary().empty();
  std::string text = absl::StrFormat("\n%s %s: step %d of %d", job.job_id(), StateName(job.state()),
                                     summary.last.step(), job.max_steps());
  if (own && summary.last.step() > 0) {
    absl::StrAppendFormat(&text, ", loss %.4f", summary.last.loss());
  }
  if (own && summary.tokens_per_second > 0) {
    absl::StrAppend(&text, ", ", RenderTokenRate(summary.tokens_per_second, summary.last));
  }
  if (summary.restarts > 0) {
    absl::StrAppend(&text, ", recovered from ", summary.restarts,
                    summary.restarts == 1 ? " fault" : " faults");
  }
  absl::StrAppend(&text, "\n");
  if (!own) {
    absl::StrAppend(&text, "\n", job.summary(), job.summary().back() == '\n' ? "" : "\n");
  } else {
    for (const std::string& table : {SwapTable(summary.last), PeakTable(summary.last)}) {
      if (!table.empty()) absl::StrAppend(&text, "\n", table);
    }
  }
  if (job.state() == v1::JOB_STATE_FINISHED) {
    absl::StrAppend(&text, "\nmodel: ", job.output_dir(), "/final\n");
  }
  return text;
}

std::string RenderSeconds(double seconds) {
  constexpr double kMost = 9e9;  // what nanoseconds can count
  const auto whole = static_cast<int64_t>(std::lround(std::clamp(seconds, 0.0, kMost)));
  return whole < 60 ? absl::StrCat(whole, " s") : FormatDuration(Seconds(whole));
}

std::string RenderRate(double rate) {
  if (rate >= 1e9) return absl::StrFormat("%.2f GB/s", rate / 1e9);
  if (rate >= 1e6) return absl::StrFormat("%.0f MB/s", rate / 1e6);
  if (rate >= 1e3) return absl::StrFormat("%.0f kB/s", rate / 1e3);
  return absl::StrFormat("%.0f B/s", rate);
}

std::string RenderBar(const std::vector<BarPart>& parts, int cells) {
  std::string bar;
  double sum = 0;
  for (const BarPart& part : parts) {
    sum += std::max(part.share, 0.0);
    int end = std::clamp(static_cast<int>(std::lround(sum * cells)), 0, cells);
    if (end > static_cast<int>(bar.size())) bar.resize(end, part.fill);
  }
  bar.resize(cells, ' ');
  return bar;
}

std::string RenderTable(const std::vector<std::vector<std::string>>& rows) {
  std::vector<size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (size_t i = 0; i < row.size(); ++i) {
      absl::StrAppend(&text, row[i]);
      if (i + 1 < row.size()) text.append(widths[i] - row[i].size() + 2, ' ');
    }
    absl::StrAppend(&text, "\n");
  }
  return text;
}

}  // namespace harmony::client
