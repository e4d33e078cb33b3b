#include <fmt/format.h>

#include <cstdint>
#include <fstream>
#include <string>

#include "common/base/bytes.h"
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

// Device attributes of the driver that only this file uses.
constexpr int kPciBusId = 33;
constexpr int kPciDeviceId = 34;
constexpr int kPciDomainId = 50;

// The first line; empty where there is no such file.
std::string FirstLine(const std::string& path) {
  std::ifstream file(path);
  std::string line;
  std::getline(file, line);
  return line;
}

std::string DriverVersion() {
  const std::string version = FirstLine("/sys/module/nvidia/version");
  return version.empty() ? FirstLine("/proc/driver/nvidia/version") : version;
}

}  // namespace

Status RunInfo(const Options&, BenchDevice& device, Results& results) {
  const cuda::CudaDriver& driver = *device.driver;
  const auto attribute = [&](int number) {
    int value = -1;
    (void)driver.api().device_get_attribute(&value, static_cast<cuda::DeviceAttribute>(number),
                                            device.device->ordinal());
    return value;
  };
  const auto known = [&](cuda::DeviceAttribute number) {
    return attribute(static_cast<int>(number));
  };
  size_t free = 0;
  size_t total = 0;
  DWS_RETURN_IF_ERROR(driver.Check(driver.api().mem_get_info(&free, &total), "cuMemGetInfo"));
  const std::string pci = fmt::format("{:04x}:{:02x}:{:02x}.0", attribute(kPciDomainId),
                                      attribute(kPciBusId), attribute(kPciDeviceId));
  const std::string sysfs = "/sys/bus/pci/devices/" + pci;
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> uuids, driver.DeviceUuids());
  results.Told(
      "device",
      {{"name", device.device->name()},
       {"uuid", device.device->uuid()},
       {"devices", fmt::format("{}", uuids.size())},
       {"memory_bytes", fmt::format("{}", total)},
       {"memory_free_bytes", fmt::format("{}", free)},
       {"multiprocessors", fmt::format("{}", known(cuda::DeviceAttribute::kMultiprocessorCount))},
       {"compute_capability",
        fmt::format("{}.{}", known(cuda::DeviceAttribute::kComputeCapabilityMajor),
                    known(cuda::DeviceAttribute::kComputeCapabilityMinor))},
       {"descriptor_handles", fmt::format("{}", known(cuda::DeviceAttribute::kDescriptorHandles))},
       {"fabric_handles", fmt::format("{}", known(cuda::DeviceAttribute::kFabricHandles))},
       {"memory_pools", fmt::format("{}", known(cuda::DeviceAttribute::kMemoryPools))},
       {"pci", pci},
       {"pci_link_speed", FirstLine(sysfs + "/current_link_speed")},
       {"pci_link_width", FirstLine(sysfs + "/current_link_width")},
       {"driver", DriverVersion()},
       {"cuda_version",
        fmt::format("{}.{}", driver.version() / 1000, driver.version() % 1000 / 10)},
       {"kernel", FirstLine("/proc/sys/kernel/osrelease")},
       {"host_threads", fmt::format("{}", device.pool->worker_count())}});
  return OkStatus();
}

}  // namespace dws::gpu_check
