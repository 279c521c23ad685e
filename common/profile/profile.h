#pragma once

// Measured times of one model's layers on one machine: what `harmony profile` writes and what
// ProfiledCosts turns into durations. PURE values; profile_json.h reads and writes the file.
//
// A layer is measured once for each *shape* (layers whose tensors have the same shapes), by the
// code that trains it, over the microbatch sizes that fit the device.

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/units.h"
#include "common/job/job_spec.h"
#include "common/model/model_spec.h"
#include "common/plan/machine.h"
#include "common/plan/plan.h"

namespace harmony::profile {

inline constexpr char kProfileSchema[] = "harmony-profile/1";

// Median of repeats and how far they spread.
struct Measured {
  double median = 0, least = 0, most = 0;
  bool operator==(const Measured&) const = default;
};
// What was not repeated, or is a model.
inline Measured Exactly(double value) { return {value, value, value}; }
// Sorts. REQUIRES: not empty.
Measured MeasuredOf(std::vector<double>& repeats);

// One layer over one microbatch size. Times in seconds.
struct LayerSizeProfile {
  int64_t samples = 0;  // sequences
  // Not of the head, which runs only fused.
  std::optional<Measured> forward;
  // Recompute and backward of the last layer of its group (what only its successor would read is
  // not recomputed). Embedding: its backward. Head: forward, loss and backward.
  Measured backward;
  // The same with the layer's output recomputed, as all but the last layer of a group. Blocks only.
  std::optional<Measured> backward_inner;
  // Of tasks that keep what the forward computed (LayerGroup::keep_activations): the forward, which
  // leaves it behind, and the backward alone. Blocks only, where there was room to measure.
  std::optional<Measured> keeping_forward, kept_backward;
  // Peaks of the worker's capped workspace.
  Bytes forward_workspace, backward_workspace;
  // What one more such layer in a group adds to the backward's peak. Blocks only, else 0.
  Bytes activation_bytes;
  bool operator==(const LayerSizeProfile&) const = default;
};

struct LayerProfile {
  std::string kind;         // LayerCost::name
  std::vector<int> layers;  // of the model, that have this shape
  Bytes parameter_bytes;    // of all its references
  Bytes input_bytes;        // of the boundary tensor that enters it, one sequence
  // Gradients are zeroed before the first microbatch, and checked to be finite after the last.
  Measured zero, check;
  std::vector<LayerSizeProfile> sizes;  // ascending
  bool operator==(const LayerProfile&) const = default;
};

// One direction of a device's link. A transfer takes latency + bytes / bandwidth.
struct LinkProfile {
  Measured latency;   // seconds
  Measured alone;     // bytes per second, nothing else moving
  Measured duplex;    // the other direction of the same device busy as well
  Measured together;  // all links of all devices busy
  bool operator==(const LinkProfile&) const = default;
};

struct DeviceProfile {
  std::string spec;  // ToString(DeviceSpec)
  Bytes memory;
  std::vector<LayerProfile> layers;
  // Time of a layer while all devices compute, over its time alone: above 1 where devices share
  // cores. 1 for a single device.
  double together = 1;
  LinkProfile h2d, d2h;
  std::optional<LinkProfile> p2p;  // outgoing; none for a single device
  bool operator==(const DeviceProfile&) const = default;
};

struct HostProfile {
  std::string optimizer;     // "adamw", "sgd"
  Measured update_rate;      // bytes of weights, moments and gradients read and written, per second
  Measured norm_rate;        // bytes of gradients per second
  Measured batch_rate;       // bytes of tokens and labels per second
  Measured initialize_rate;  // bytes of weights and moments per second
  Measured task;             // seconds of a task that does next to nothing
  Measured wake;             // seconds from a signal to the waiter's next instruction
  bool operator==(const HostProfile&) const = default;
};

// What measured it. Not compared when a profile is used: a plan may be made elsewhere.
struct ProfileVersions {
  std::string harmony, torch, cpu_capability, cpu;
  int cores = 0;
  bool operator==(const ProfileVersions&) const = default;
};

struct Profile {
  std::string model_fingerprint;  // ModelFingerprint
  std::string model;              // for people
  int64_t sequence_length = 0;
  int compute_threads = 1;
  bool quick = false;  // one microbatch size only
  // Layers were not measured: they take their FLOPs at the speed of one that was.
  bool calibrated = false;
  // Measured for a plan or a run that nobody gave a profile. Like a calibrated one it decides
  // nothing that results depend on.
  bool in_passing = false;
  ProfileVersions versions;
  std::vector<DeviceProfile> devices;
  HostProfile host;
  bool operator==(const Profile&) const = default;
};

// ---- What is measured ----

// Layers of the same cost and parameters together, in the order of their first one.
struct LayerShape {
  std::string name;  // LayerCost::name
  std::vector<int> layers;
};
std::vector<LayerShape> DistinctLayers(const model::ModelSpec& model);

// Whether a group's backward does the layer's forward before it goes back: it then makes the
// layer's output, too, which others need. (The first layer's is done within its own backward.)
bool Recomputes(const model::ModelSpec& model, int layer);
// What keeping activations does to the times of a layer whose backward recomputes all the same:
// nothing. REQUIRES: it recomputes, its other times are set.
void NoteRecompute(const model::ModelSpec& model, int layer, LayerSizeProfile& size);
// Whether a layer runs in the fused task only: the last one.
inline bool RunsFused(const model::ModelSpec& model, int layer) {
  return layer + 1 == model.num_layers();
}
// The layer whose speed stands for the model's: the first of those with the most operations, first
// and last layer apart.
int TypicalLayer(const model::ModelSpec& model);

// Canonical text of everything that makes a model's layers cost what they cost; two models with the
// same text have the same profile on the same machine.
std::string ModelCostText(const model::ModelSpec& model);
// Its digest, 16 hexadecimal digits.
std::string ModelFingerprint(const model::ModelSpec& model);

// A profile of the model as the job trains it, nothing measured yet.
Profile BlankProfile(const model::ModelSpec& model, const job::JobSpec& job);

// Microbatch sizes worth measuring, ascending: the job's own, or all divisors of the global batch.
std::vector<int64_t> ProfiledSizes(const job::JobSpec& job);
// The one of a quick profile: the smallest with at least 512 tokens.
int64_t QuickSize(const job::JobSpec& job);

const char* OptimizerName(const job::JobSpec& job);
// Bytes that the update of a block reads and writes, gradients apart: weights and moments twice,
// working copies once.
Bytes UpdatedBytes(const model::ParamBlock& block, int moments);
// The same with its gradients, once.
Bytes UpdateBytes(const model::ParamBlock& block, int moments);

// What the host's rates are measured on: the first blocks of the model, cut to some 16 million
// elements in all, with a plan that has one group and deferred updates.
struct HostWorkload {
  model::ModelSpec model;
  plan::Plan plan;
};
HostWorkload HostWorkloadOf(const model::ModelSpec& model, const job::JobSpec& job);

// What the links are measured with: so much of the device for each of four uses (from the host, to
// the host, to a peer, from a peer), and in the arena, device after device, for the first two.
Bytes LinkSlice(const plan::DeviceSpec& device, size_t num_devices);

// ---- Use ----

// OK when the profile is of this model, job and machine. InvalidArgument begins with `where` and
// names the field that differs and what is there.
absl::Status CheckProfile(const Profile& profile, absl::string_view where,
                          const model::ModelSpec& model, const job::JobSpec& job,
                          const std::vector<plan::DeviceSpec>& devices);

// Seconds for `samples`, which may lie between, below or beyond the sizes measured: on the line
// through the two nearest, never below zero; with one size, in proportion. `time` picks a time of a
// size. REQUIRES: sizes is not empty, samples > 0.
double InterpolateSeconds(const std::vector<LayerSizeProfile>& sizes, int64_t samples,
                          double (*time)(const LayerSizeProfile&));

}  // namespace harmony::profile
