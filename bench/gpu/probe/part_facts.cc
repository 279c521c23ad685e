#include <sched.h>
#include <sys/resource.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <fstream>

#include "bench/gpu/probe/driver.h"
#include "bench/gpu/probe/kernels.h"
#include "bench/gpu/probe/libraries.h"
#include "bench/gpu/probe/memory.h"
#include "bench/gpu/probe/report.h"
#include "bench/gpu/probe/roles.h"

namespace harmony::bench {
namespace {

std::string FirstLine(const char* path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line.empty() ? "not there" : line;
}

std::string Version(int version) { return Format("%d.%d", version / 1000, version % 1000 / 10); }

void ReportHost() {
  utsname name = {};
  uname(&name);
  ReportText("kernel", std::string(name.sysname) + " " + name.release + " " + name.machine);
  cpu_set_t allowed;
  CPU_ZERO(&allowed);
  const int usable =
      sched_getaffinity(0, sizeof(allowed), &allowed) == 0 ? CPU_COUNT(&allowed) : -1;
  ReportNumber("cores_online", static_cast<double>(sysconf(_SC_NPROCESSORS_ONLN)), "");
  ReportNumber("cores_usable", usable, "");
  ReportText("cgroup_cpu_max", FirstLine("/sys/fs/cgroup/cpu.max"));
  ReportText("cgroup_memory_max", FirstLine("/sys/fs/cgroup/memory.max"));
  ReportText("host_memory", FirstLine("/proc/meminfo"));
  rlimit locked = {};
  getrlimit(RLIMIT_MEMLOCK, &locked);
  ReportText("locked_memory_limit",
             locked.rlim_cur == RLIM_INFINITY ? "none" : std::to_string(locked.rlim_cur) + " B");
  ReportText("huge_pages_of_shared_memory",
             FirstLine("/sys/kernel/mm/transparent_hugepage/shmem_enabled"));
  ReportText("huge_pages", FirstLine("/sys/kernel/mm/transparent_hugepage/enabled"));
}

void ReportAttributes() {
  ReportText("compute_capability",
             Format("%d.%d", Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR),
                    Attribute(CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)));
  const struct {
    const char* name;
    CUdevice_attribute attribute;
  } kAttributes[] = {
      {"multiprocessors", CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT},
      {"copy_engines", CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT},
      {"virtual_memory", CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED},
      {"memory_as_descriptor", CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED},
      {"host_memory_registers", CU_DEVICE_ATTRIBUTE_HOST_REGISTER_SUPPORTED},
      {"registered_at_host_pointer", CU_DEVICE_ATTRIBUTE_CAN_USE_HOST_POINTER_FOR_REGISTERED_MEM},
      {"stream_waits_64_bit", CU_DEVICE_ATTRIBUTE_CAN_USE_64_BIT_STREAM_MEM_OPS},
      {"compute_mode", CU_DEVICE_ATTRIBUTE_COMPUTE_MODE},
      {"numa_node", CU_DEVICE_ATTRIBUTE_HOST_NUMA_ID},
  };
  for (const auto& [name, attribute] : kAttributes) {
    ReportNumber(name, Attribute(attribute), "");
  }
}

void ReportPeers() {
  int count = 0;
  Must(Cuda().DeviceGetCount(&count), "cuDeviceGetCount");
  ReportNumber("devices", count, "");
  for (int other = 0; other < count; ++other) {
    if (other == TheSettings().device) continue;
    CUdevice device = 0;
    int can = 0;
    Must(Cuda().DeviceGet(&device, other), "cuDeviceGet");
    Must(Cuda().DeviceCanAccessPeer(&can, TheDevice(), device), "cuDeviceCanAccessPeer");
    ReportFlag("reaches_device_" + std::to_string(other), can != 0);
  }
}

void ReportNvml(const std::string& bus) {
  const Nvml nvml(bus);
  ReportFlag("nvml", nvml.works());
  ReportText("driver", nvml.driver_version());
  // An idle link sleeps at a lower generation: the copies tell the truth.
  ReportText("pcie",
             Format("generation %d x%d now, at most generation %d x%d", nvml.pcie_generation(false),
                    nvml.pcie_width(false), nvml.pcie_generation(true), nvml.pcie_width(true)));
  const int mig = nvml.mig();
  ReportText("mig", mig < 0 ? "not told" : mig == 1 ? "on" : "off");
}

}  // namespace

void RunFacts() {
  ReportHost();
  char name[128] = "", bus[64] = "";
  Must(Cuda().DeviceGetName(name, sizeof(name), TheDevice()), "cuDeviceGetName");
  ReportText("name", name);
  if (Cuda().DeviceGetPCIBusId(bus, sizeof(bus), TheDevice()) != CUDA_SUCCESS) bus[0] = '\0';
  ReportText("bus", bus);
  int version = 0;
  Must(Cuda().DriverGetVersion(&version), "cuDriverGetVersion");
  ReportText("driver_cuda_version", Version(version));
  ReportText("runtime_version", Version(RuntimeVersion()));
  ReportAttributes();
  ReportPeers();
  ReportNvml(bus);
  size_t total = 0;
  Must(Cuda().DeviceTotalMem(&total, TheDevice()), "cuDeviceTotalMem");
  ReportNumber("total_memory", static_cast<double>(total) / kGiB, "GiB");
  ReportNumber("region_granularity", static_cast<double>(RegionGranularity()) / kMiB, "MiB");
  // Last, as it makes a context.
  UsePrimaryContext();
  size_t free = 0;
  Must(Cuda().MemGetInfo(&free, &total), "cuMemGetInfo");
  ReportNumber("free_memory", static_cast<double>(free) / kGiB, "GiB");
}

}  // namespace harmony::bench
