// Another process that owns device memory and hands it over: this test program, started anew.
#pragma once

#include <sys/types.h>

#include <string>
#include <vector>

#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/cuda_export.h"

namespace dws::cuda {

// Ranges hold Pattern(their number, their size).
struct Exported {
  std::string error;  // why nothing was exported; empty: it was
  std::vector<RegionHandle> regions;
  std::vector<UniqueFd> descriptors;
  std::vector<ExportedMemory::Place> places;
  std::vector<size_t> sizes;  // of the ranges

  // The descriptors of the next region, in order.
  std::vector<UniqueFd> TakeDescriptors(const RegionHandle& region);
};

// Lifecycle: killed by the destructor, if it still lives.
class ExporterProcess {
 public:
  // `scenario` is one of exporter_process.cc. `visible` is its CUDA_VISIBLE_DEVICES; empty: ours.
  ExporterProcess(const std::string& scenario, const std::string& uuid,
                  const std::string& visible = "");
  ~ExporterProcess();

  Exported Receive() const;
  // Whether each of its ranges holds Pattern(number, size, turn); else what is wrong.
  std::string Verify(uint8_t turn) const;
  void Kill();

 private:
  pid_t pid_ = -1;
  UniqueFd socket_;
};

}  // namespace dws::cuda
