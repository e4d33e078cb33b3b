// Each tensor has a pattern of its own, so that an exchanged or shifted mapping is noticed.
#include "tools/gpu_check/sections/imported_tensors.h"

#include <utility>

#include "common/model/digest/digest.h"

namespace dws::gpu_check {

Result<ImportedTensors> ImportedTensors::Import(BenchDevice& device, Exporter& exporter) {
  ImportedTensors tensors;
  DWS_ASSIGN_OR_RETURN(cuda::ExportedMemory exported, exporter.Export());
  DWS_ASSIGN_OR_RETURN(tensors.regions_,
                       ImportRegions(exported.regions, std::move(exported.descriptors),
                                     Access::kReadWrite, device.devices.get()));
  tensors.places_ = std::move(exported.places);
  return tensors;
}

Status CheckTensors(BenchDevice& device, Exporter& exporter, const ImportedTensors& tensors,
                    uint64_t size_bytes) {
  constexpr uint32_t kOther = 1'000'000;  // more than there are tensors
  DWS_ASSIGN_OR_RETURN(const cuda::CudaStream stream, device.device->CreateStream());
  std::vector<std::byte> expected(size_bytes);
  std::vector<std::byte> found(size_bytes);
  for (uint32_t i = 0; i < tensors.count(); ++i) {
    DWS_RETURN_IF_ERROR(stream.CopyToHost(found, tensors.Address(i)));
    DWS_RETURN_IF_ERROR(stream.Synchronize());
    FillPattern(expected, i);
    if (found != expected) return DataLossError("tensor {} is not what its owner wrote", i);
    FillPattern(expected, i + kOther);
    DWS_RETURN_IF_ERROR(stream.CopyToDevice(tensors.Address(i), expected));
    DWS_RETURN_IF_ERROR(stream.Synchronize());
    DWS_ASSIGN_OR_RETURN(const Digest seen, exporter.Read(i));
    if (seen != DigestBytes(expected, 0)) {
      return DataLossError("the owner of tensor {} does not see what was written to it", i);
    }
  }
  return OkStatus();
}

}  // namespace dws::gpu_check
