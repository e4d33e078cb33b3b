// Another process that owns device memory and hands it over: this test program, started again.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/ipc/cuda_export.h"

namespace dws::cuda {

// Ranges hold Pattern(their number, their size).
struct Exported {
  std::string error;  // why nothing was exported; empty on success
  std::vector<RegionHandle> regions;
  std::vector<UniqueFd> descriptors;
  std::vector<ExportedMemory::Place> places;
  std::vector<size_t> sizes;  // of the ranges

  // The descriptors of the next region, in order.
  std::vector<UniqueFd> TakeDescriptors(const RegionHandle& region);
};

// Lifecycle: the destructor kills the process if it is still alive.
class ExporterProcess {
 public:
  // `scenario` is one of export_scenarios.h. `visible` is its CUDA_VISIBLE_DEVICES; empty: ours.
  ExporterProcess(const std::string& scenario, const std::string& uuid,
                  const std::string& visible = "");
  ~ExporterProcess();

  Exported Receive() const;
  // "right" if each of its ranges holds Pattern(number, size, turn), otherwise what is wrong.
  std::string Verify(uint8_t turn) const;
  void Kill();

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace dws::cuda
