#include "client/commands/profile.h"

#include <cstdio>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "client/commands/output_file.h"
#include "client/commands/profile_cache.h"
#include "client/commands/profile_measure.h"
#include "client/progress/render.h"
#include "common/base/status.h"
#include "common/io/file.h"
#include "common/ipc/host_memory.h"
#include "common/profile/plausible.h"
#include "common/profile/profile_json.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

// Everything that could be wrong with the input, before the first process starts.
absl::StatusOr<MeasureOptions> Prepare(const GlobalOptions& global, const ProfileOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(const v1::SubmitRequest request, MakeSubmitRequest(options.job));
  HARMONY_ASSIGN_OR_RETURN(MeasureOptions measure, MeasureOptionsOf(global, options.job, request));
  HARMONY_ASSIGN_OR_RETURN(measure.cluster, ResolveClusterHere(global, options.cluster));
  std::error_code error;
  if (!fs::is_directory(io::ParentDirectory(options.output), error)) {
    return absl::NotFoundError(
        absl::StrCat("cannot write ", options.output, ": there is no such folder"));
  }
  std::vector<std::string> inputs = FilesOf(options.job, request);
  inputs.push_back(options.cluster.config);
  HARMONY_RETURN_IF_ERROR(CheckOutputFile("-o", options.output, inputs));
  measure.quick = options.quick;
  const bool quiet = global.json;
  measure.say = [quiet](const std::string& text) {
    if (!quiet) fprintf(stderr, "%s\n", text.c_str());
  };
  return measure;
}

std::string Time(const profile::Measured& time) {
  return absl::StrFormat("%.3g ms (%.3g to %.3g)", time.median * 1e3, time.least * 1e3,
                         time.most * 1e3);
}
std::string Rate(const profile::Measured& rate) {
  return absl::StrFormat("%.3g GB/s", rate.median / 1e9);
}

std::string LayersText(const profile::DeviceProfile& device) {
  std::vector<std::vector<std::string>> rows = {
      {"LAYER", "COUNT", "MICROBATCH", "FORWARD", "BACKWARD", "WORKSPACE"}};
  for (const profile::LayerProfile& layer : device.layers) {
    for (const profile::LayerSizeProfile& size : layer.sizes) {
      rows.push_back({layer.kind, absl::StrCat(layer.layers.size()), absl::StrCat(size.samples),
                      size.forward ? Time(*size.forward) : "-", Time(size.backward),
                      FormatBytes(size.backward_workspace)});
    }
  }
  return RenderTable(rows);
}

std::string LinksText(const profile::Profile& profile) {
  std::vector<std::vector<std::string>> rows = {
      {"DEVICE", "LINK", "ALONE", "BOTH WAYS", "ALL AT ONCE", "LATENCY"}};
  for (size_t d = 0; d < profile.devices.size(); ++d) {
    const auto add = [&](const char* name, const profile::LinkProfile& link) {
      rows.push_back({absl::StrCat(d), name, Rate(link.alone), Rate(link.duplex),
                      Rate(link.together), absl::StrFormat("%.3g us", link.latency.median * 1e6)});
    };
    add("h2d", profile.devices[d].h2d);
    add("d2h", profile.devices[d].d2h);
    if (profile.devices[d].p2p) add("p2p", *profile.devices[d].p2p);
  }
  return RenderTable(rows);
}

std::string ProfileText(const profile::Profile& profile) {
  std::string text;
  std::string shown;  // devices alike are shown once
  for (const profile::DeviceProfile& device : profile.devices) {
    if (device.spec == shown) continue;
    shown = device.spec;
    absl::StrAppend(&text, device.spec, "\n", LayersText(device), "\n");
  }
  absl::StrAppend(&text, LinksText(profile), "\nhost: ", profile.host.optimizer, " updates ",
                  Rate(profile.host.update_rate), ", norms ", Rate(profile.host.norm_rate),
                  ", a task ", absl::StrFormat("%.3g us", profile.host.task.median * 1e6),
                  ", a wake-up ", absl::StrFormat("%.3g us", profile.host.wake.median * 1e6), "\n");
  for (size_t d = 0; profile.devices.size() > 1 && d < profile.devices.size(); ++d) {
    absl::StrAppend(&text, "device ", d, ": ", absl::StrFormat("%.2f", profile.devices[d].together),
                    " times its time alone while all devices compute\n");
  }
  return text;
}

void Print(const GlobalOptions& global, const ProfileOptions& options, const Obtained& outcome) {
  const profile::Spread spread = profile::SpreadOf(outcome.profile);
  if (global.json) {
    nlohmann::ordered_json json;
    json["file"] = options.output;
    json["cached"] = outcome.cached;
    json["cache_file"] = outcome.cache_path;
    json["seconds"] = outcome.seconds;
    json["model_fingerprint"] = outcome.profile.model_fingerprint;
    json["spread"] = {{"layers", spread.layers}, {"links", spread.links}};
    json["under_load"] = profile::MeasuredUnderLoad(spread);
    PrintJson(json);
    return;
  }
  printf("%s", ProfileText(outcome.profile).c_str());
  if (profile::MeasuredUnderLoad(spread)) {
    printf(
        "%s\nsomething else ran meanwhile: when the machine is quiet, --recalibrate measures "
        "again\n",
        profile::DebugString(spread).c_str());
  }
  if (outcome.cached) {
    printf("measured before, taken from %s (--recalibrate measures anew): %s\n",
           outcome.cache_path.c_str(), options.output.c_str());
  } else {
    printf("measured in %.1f s: %s\n", outcome.seconds, options.output.c_str());
  }
}

// Never nothing: what is not cached is measured.
absl::StatusOr<std::optional<Obtained>> Measure(const GlobalOptions& global,
                                                const ProfileOptions& options) {
  HARMONY_ASSIGN_OR_RETURN(const MeasureOptions measure, Prepare(global, options));
  const SignalMask as_before;  // one that stopped it ends the program as it would have anyway
  return ObtainProfile(measure,
                       options.again ? ObtainBy::kMeasuring : ObtainBy::kCacheElseMeasuring);
}

}  // namespace

int ProfileCommand(const GlobalOptions& global, const ProfileOptions& options) {
  const absl::StatusOr<std::optional<Obtained>> outcome = Measure(global, options);
  if (!outcome.ok()) {
    const int code = Fail(outcome.status());
    return absl::IsResourceExhausted(outcome.status()) ? 2 : code;  // the job does not fit
  }
  const absl::Status written =
      WriteOutputFile(options.output, profile::ProfileToJson((*outcome)->profile));
  if (!written.ok()) return Fail(written);
  Print(global, options, **outcome);
  return 0;
}

}  // namespace harmony::client
