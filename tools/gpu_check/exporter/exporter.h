// Device memory in another process, as a trainer or an engine has it beside a daemon. The process
// is this program again (RunExporter); this side says what to allocate and gets the handles.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/ipc/cuda_export.h"
#include "common/model/digest/digest.h"
#include "tools/gpu_check/exporter/child_process.h"
#include "tools/gpu_check/exporter/exporter_wire.h"

namespace dws::gpu_check {

// The environment variable that names gpu_check, for other programs.
inline constexpr const char* kProgramVariable = "DWS_GPU_CHECK";

// How the exporter allocates its memory.
inline constexpr std::string_view kLegacy = "legacy";        // as cudaMalloc does
inline constexpr std::string_view kChunks = "chunks";        // VMM, as expandable segments do
inline constexpr std::string_view kPool = "pool";            // of an explicit pool
inline constexpr std::string_view kDefaultPool = "default";  // as cudaMallocAsync does

// Tensors, each with its own allocation.
struct TensorsAsked {
  std::string_view kind = kLegacy;
  uint32_t count = 1;
  uint64_t tensor_bytes = 0;
  uint64_t offset_bytes = 0;  // of a tensor in its allocation
  uint64_t chunk_bytes = 0;   // of kChunks: the smallest chunk; 0: one chunk for the tensor
};

// The initial content of tensor `number`.
void FillPattern(MutableByteSpan bytes, uint32_t number);

// Lifecycle: its process ends with it. Threads: one. Errors of all calls: CANCELLED,
// DEADLINE_EXCEEDED: the process has ended, or hangs; INTERNAL: the error that it reported.
class Exporter {
 public:
  // On the device `gpu`. `visible_devices`: its CUDA_VISIBLE_DEVICES; empty: like ours.
  static Result<std::unique_ptr<Exporter>> Start(const std::string& gpu,
                                                 const std::string& visible_devices = "");

  // The device's number in its process.
  int ordinal() const { return ordinal_; }

  // Allocates tensors and fills them with their patterns.
  Status Allocate(const TensorsAsked& asked);
  // Handles of all tensors, and the place of each by its number.
  Result<cuda::ExportedMemory> Export();
  // Returns the digest of a tensor that its owner computes.
  Result<Digest> Read(uint32_t tensor);
  // Keeps the device busy reading its memory, like an engine. Returns GB read each second.
  Status BeginLoad(double seconds);
  Result<double> EndLoad();
  void Kill() { process_.Kill(); }

 private:
  Exporter(ChildProcess process, UniqueFd socket)
      : process_(std::move(process)), socket_(std::move(socket)) {}
  Result<JsonMessage> Ask(const Json& request);
  Result<JsonMessage> Answer();

  ChildProcess process_;
  UniqueFd socket_;
  int ordinal_ = 0;
};

// The other side: carries out the requests from kExporterSocket until it is closed. The exit
// status.
int RunExporter(const std::string& gpu);

}  // namespace dws::gpu_check
