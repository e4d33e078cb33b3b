#include <vector>

#include "common/memory/cuda/device_weights.h"
#include "common/model/limits.h"
#include "tools/gpu_check/exporter/exporter.h"
#include "tools/gpu_check/sections/imported_tensors.h"
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

constexpr uint32_t kBlocks = 64;
constexpr uint64_t kBlockBytes = uint64_t{limits::kBlockElements} * 2;
constexpr uint64_t kTensorBytes = kBlocks * kBlockBytes;
constexpr int kCommits = 300;

// The blocks of a commit that writes all of a tensor, and what it writes, on the device.
struct WholeCommit {
  cuda::CudaBuffer values;
  cuda::CudaBuffer blocks;
};

Result<WholeCommit> MakeCommit(const cuda::CudaDevice& device, ByteSpan values) {
  WholeCommit commit;
  DWS_ASSIGN_OR_RETURN(commit.values, device.Allocate(values.size()));
  std::vector<cuda::CommitBlock> blocks;
  for (uint32_t b = 0; b < kBlocks; ++b) {
    blocks.push_back({.staged = commit.values.address() + b * kBlockBytes,
                      .first_element = uint64_t{b} * limits::kBlockElements,
                      .entries = limits::kBlockElements,
                      .place = 0,
                      .element_bytes = 2,
                      .dense = 1});
  }
  const ByteSpan list = std::as_bytes(std::span(blocks));
  DWS_ASSIGN_OR_RETURN(commit.blocks, device.Allocate(list.size()));
  DWS_ASSIGN_OR_RETURN(const cuda::CudaStream stream, device.CreateStream());
  DWS_RETURN_IF_ERROR(stream.CopyToDevice(commit.values.address(), values));
  DWS_RETURN_IF_ERROR(stream.CopyToDevice(commit.blocks.address(), list));
  DWS_RETURN_IF_ERROR(stream.Synchronize());
  return commit;
}

// Kills the memory's owner in the middle of repeated commits: no commit may fail, the memory must
// hold what they wrote, and releasing it must give no error.
Status CheckKill(BenchDevice& device, std::string_view kind) {
  DWS_ASSIGN_OR_RETURN(const auto exporter, Exporter::Start(device.device->uuid()));
  DWS_RETURN_IF_ERROR(
      exporter->Allocate({.kind = kind, .tensor_bytes = kTensorBytes, .chunk_bytes = 1}));
  std::vector<std::byte> expected(kTensorBytes);
  FillPattern(expected, 77);
  DWS_ASSIGN_OR_RETURN(const WholeCommit commit, MakeCommit(*device.device, expected));
  std::vector<std::byte> found(kTensorBytes);
  DWS_ASSIGN_OR_RETURN(const cuda::CudaStream stream, device.device->CreateStream());
  {
    DWS_ASSIGN_OR_RETURN(const ImportedTensors tensors, ImportedTensors::Import(device, *exporter));
    const std::vector<cuda::Place> places = {{.base = tensors.Address(0),
                                              .run_elements = kTensorBytes / 2,
                                              .stride_elements = kTensorBytes / 2}};
    DWS_ASSIGN_OR_RETURN(const auto weights,
                         cuda::DeviceWeights::Create(device.device, places, {}));
    for (int i = 0; i < kCommits; ++i) {
      DWS_RETURN_IF_ERROR(weights->BeginCommit(commit.blocks.address(), kBlocks));
      if (i == kCommits / 3) exporter->Kill();
      DWS_RETURN_IF_ERROR(weights->Synchronize());
    }
    DWS_RETURN_IF_ERROR(stream.CopyToHost(found, tensors.Address(0)));
    DWS_RETURN_IF_ERROR(stream.Synchronize());
  }
  if (found != expected) return DataLossError("the memory is not what the commits wrote");
  // An error of the unmapping shows here.
  return stream.Synchronize();
}

}  // namespace

Status RunKill(const Options&, BenchDevice& device, Results& results) {
  results.Checked("the owner of VMM chunks is killed while we commit", CheckKill(device, kChunks));
  results.Checked("the owner of a pool is killed while we commit", CheckKill(device, kPool));
  results.Checked("the owner of a cudaMalloc is killed while we commit",
                  CheckKill(device, kLegacy));
  return OkStatus();
}

}  // namespace dws::gpu_check
