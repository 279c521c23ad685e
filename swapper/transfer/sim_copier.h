#pragma once

#include <cstddef>
#include <vector>

#include "common/ipc/fd_passing.h"
#include "common/ipc/prefault.h"
#include "common/plan/machine.h"
#include "swapper/transfer/copier.h"

namespace harmony::swapper {

// Copies of this process's own between the arena and the regions of sim devices.
class SimCopier : public Copier {
 public:
  // `regions[d]` is the memory of `devices[d]`; `arena` is mapped as long as the copier lives. It
  // runs the lanes of `of_devices`.
  SimCopier(std::byte* arena, std::vector<plan::DeviceSpec> devices,
            std::vector<ipc::MappedRegion> regions, std::vector<int> of_devices);

  Bytes MemoryOf(int device) const override;
  bool ReachesPeer(int, int) const override { return true; }
  absl::Status Run(const Copy& copy) override;
  // The memory of such a device, if it is paced, is there before a copy into it begins, and does
  // not come page by page during the copy. At both ends of the resident part, where the dispatcher
  // stacks what it places; a bounded part, for a device may be far larger than the job. The arena's
  // follows in the background.
  absl::Status BeginJob(const plan::Plan& plan, Bytes extent) override;
  absl::Status EndJob() override;

 private:
  std::byte* At(const SlotRange& range) const;

  std::byte* const arena_;
  const std::vector<plan::DeviceSpec> devices_;
  const std::vector<ipc::MappedRegion> regions_;
  const std::vector<int> of_devices_;
  ipc::Prefault prefault_;
};

}  // namespace harmony::swapper
