#include "client/commands/profile_cache.h"

#include <cstdlib>
#include <filesystem>

#include "absl/algorithm/container.h"
#include "absl/strings/match.h"
#include "absl/strings/str_cat.h"
#include "absl/strings/str_join.h"
#include "client/launcher/device_memory.h"
#include "common/base/clock.h"
#include "common/base/limits.h"
#include "common/base/status.h"
#include "common/io/atomic_file.h"
#include "common/job/job_file.h"
#include "common/profile/profile_json.h"

namespace harmony::client {
namespace {

namespace fs = std::filesystem;

std::string CacheDirectory() {
  const char* cache = std::getenv("XDG_CACHE_HOME");
  if (cache != nullptr && *cache != '\0') return absl::StrCat(cache, "/harmony/profiles");
  const char* home = std::getenv("HOME");
  if (home == nullptr || *home == '\0') return "";
  return absl::StrCat(home, "/.cache/harmony/profiles");
}

// A program that was built anew may be faster: its size and time stand for what it is.
std::string IdentityOf(const std::string& program) {
  std::error_code error;
  const auto size = fs::file_size(program, error);
  const auto time = fs::last_write_time(program, error).time_since_epoch().count();
  return absl::StrCat(size, " ", time);
}

std::optional<profile::Profile> ReadCached(const std::string& path,
                                           const std::function<void(const std::string&)>& say) {
  const absl::StatusOr<std::string> text = io::ReadWholeFile(path, limits::kMostFileBytes);
  if (!text.ok()) return std::nullopt;
  absl::StatusOr<profile::Profile> profile = profile::ParseProfile(*text, path);
  if (profile.ok()) return *std::move(profile);
  say(absl::StrCat(path, " is damaged: measuring anew"));
  return std::nullopt;
}

void WriteCached(const std::string& path, const profile::Profile& profile,
                 const std::function<void(const std::string&)>& say) {
  std::error_code error;
  fs::create_directories(io::ParentDirectory(path), error);
  const absl::Status written = io::WriteFileAtomically(path, profile::ProfileToJson(profile));
  if (!written.ok()) say(absl::StrCat("not cached: ", written.message()));
}

// The models of the GPUs among the devices; empty: there are none, or not here.
std::string GpusText(const std::string& bin_dir, const std::vector<plan::DeviceSpec>& devices) {
  if (devices.front().kind != plan::DeviceKind::kCuda) return "";
  std::string text;
  // Where there are none, nothing is measured either.
  const auto gpus = FindGpus(bin_dir);
  for (const plan::Gpu& gpu : gpus.value_or(std::vector<plan::Gpu>())) {
    const bool used = absl::c_any_of(devices, [&](const plan::DeviceSpec& device) {
      return device.cuda_ordinal == gpu.ordinal;
    });
    if (!used) continue;
    absl::StrAppend(&text, "cuda:", gpu.ordinal, " ", gpu.name, " ", gpu.multiprocessors, " ",
                    gpu.capability, "\n");
  }
  return text;
}

// All that the measured times depend on.
std::string FingerprintText(const MeasureOptions& measure,
                            const profile::ProfileVersions& versions) {
  std::string text =
      absl::StrCat(profile::kProfileSchema, "\n", profile::ModelCostText(measure.model), "sizes ",
                   absl::StrJoin(profile::ProfiledSizes(measure.job), " "), " quick ",
                   measure.quick, "\n", profile::OptimizerName(measure.job), " threads ",
                   measure.job.compute_threads, "\n", MeasurersText(measure.bin_dir, versions));
  for (const plan::DeviceSpec& device : measure.cluster.specs) {
    absl::StrAppend(&text, ToString(device), "\n");
  }
  absl::StrAppend(&text, GpusText(measure.bin_dir, measure.cluster.specs));
  return text;
}

}  // namespace

std::string MeasurersText(const std::string& bin_dir, const profile::ProfileVersions& versions) {
  return absl::StrCat(versions.harmony, " ", versions.torch, " ", versions.cpu_capability, " ",
                      versions.cpu, " ", versions.cores, "\n",
                      IdentityOf(bin_dir + "/harmony-worker"), "\n",
                      IdentityOf(bin_dir + "/harmony-swapper"), "\n");
}

std::string CachePath(absl::string_view prefix, const std::string& fingerprint_text) {
  const std::string directory = CacheDirectory();
  return directory.empty()
             ? ""
             : absl::StrCat(directory, "/", prefix, job::ResultDigest(fingerprint_text), ".json");
}

bool AnythingCached(absl::string_view prefix) {
  std::error_code error;
  for (const fs::directory_entry& entry : fs::directory_iterator(CacheDirectory(), error)) {
    if (absl::StartsWith(entry.path().filename().string(), prefix)) return true;
  }
  return false;
}

absl::StatusOr<std::optional<Obtained>> Obtain(
    const std::string& cache_path, ObtainBy by, const std::function<void(const std::string&)>& say,
    const std::function<bool(const profile::Profile&)>& fits,
    const std::function<absl::StatusOr<profile::Profile>()>& measure) {
  Obtained obtained;
  obtained.cache_path = cache_path;
  if (!cache_path.empty() && by != ObtainBy::kMeasuring) {
    std::optional<profile::Profile> cached = ReadCached(cache_path, say);
    if (cached && fits(*cached)) {
      obtained.profile = *std::move(cached);
      obtained.cached = true;
      return obtained;
    }
  }
  if (by == ObtainBy::kCacheOnly) return std::nullopt;
  const Nanos start = MonotonicClock().Now();
  HARMONY_ASSIGN_OR_RETURN(obtained.profile, measure());
  obtained.seconds = (MonotonicClock().Now() - start).seconds();
  if (!cache_path.empty()) WriteCached(cache_path, obtained.profile, say);
  return obtained;
}

absl::StatusOr<std::optional<Obtained>> ObtainProfile(const MeasureOptions& measure, ObtainBy by) {
  HARMONY_ASSIGN_OR_RETURN(const profile::ProfileVersions versions, AskVersions(measure));
  const std::string path = CachePath("", FingerprintText(measure, versions));
  const auto fits = [&](const profile::Profile& profile) {
    return profile::CheckProfile(profile, path, measure.model, measure.job, measure.cluster.specs)
        .ok();
  };
  return Obtain(path, by, measure.say, fits, [&] { return MeasureProfile(measure, versions); });
}

}  // namespace harmony::client
