// Tensors of another process, mapped here as a daemon maps them.
#pragma once

#include <cstdint>
#include <variant>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/memory/cuda/ipc/region_import.h"
#include "tools/gpu_check/exporter/exporter.h"
#include "tools/gpu_check/sections/bench_device.h"

namespace dws::gpu_check {

// Lifecycle: mapped by Import, unmapped when destroyed. Threads: one.
class ImportedTensors {
 public:
  // All tensors of `exporter`. Errors of Exporter::Export and ImportRegions.
  static Result<ImportedTensors> Import(BenchDevice& device, Exporter& exporter);

  size_t count() const { return places_.size(); }
  // Returns the tensor's address in this process.
  uint64_t Address(uint32_t tensor) const {
    const auto& place = places_[tensor];
    return std::get<cuda::CudaRegion>(regions_[place.region]).address() + place.offset_bytes;
  }

 private:
  std::vector<MappedRegion> regions_;
  std::vector<cuda::ExportedMemory::Place> places_;
};

// OK when every tensor of `size_bytes` holds the pattern of its number, and its owner sees the
// bytes that are written here then: the pattern of another number. DATA_LOSS names the tensor.
Status CheckTensors(BenchDevice& device, Exporter& exporter, const ImportedTensors& tensors,
                    uint64_t size_bytes);

}  // namespace dws::gpu_check
