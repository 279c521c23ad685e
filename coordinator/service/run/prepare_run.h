#pragma once

// What comes before a job's first command: where it starts from, and its part of the segment.

#include <cstdint>
#include <string>
#include <vector>

#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "common/base/build_identity.h"
#include "common/ipc/segment.h"
#include "coordinator/service/run/run_setup.h"
#include "coordinator/store/job_record.h"

namespace harmony::service {

// The setup of a recorded job, its start point not yet chosen. Internal when the record is damaged.
absl::StatusOr<RunSetup> SetupOf(const store::JobRecord& record, const plan::MachineSpec& machine);

// Tells a job, the plan that it runs by and the build of the programs from any other that ever was
// in a segment: what it holds is laid out by the plan, by rules that are the sources'.
uint64_t SegmentDigestOf(const store::JobRecord& record, absl::string_view build = BuildIdentity());

// Whether the segment holds this very job.
bool HoldsJob(const ipc::Segment& segment, const store::JobRecord& record);
bool HoldsAnotherJob(const ipc::Segment& segment, const store::JobRecord& record);

// Continues in the segment when it holds this very job; else releases what is there, chooses a
// checkpoint and allocates the arena. Fills in `setup->start`, `setup->continues` and
// `setup->forecast`. Slow (gigabytes).
absl::Status PrepareRun(const store::JobRecord& record, const plan::MachineSpec& machine,
                        ipc::Segment* segment, RunSetup* setup);

}  // namespace harmony::service
