// The exporting process: allocates what is requested and hands the handles over.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <memory>
#include <utility>

#include "common/base/clock.h"
#include "common/memory/cuda/cuda_driver.h"
#include "common/memory/cuda/device_weights.h"
#include "common/memory/cuda/kernel_image.h"
#include "common/model/limits.h"
#include "tools/gpu_check/exporter/device_memory.h"
#include "tools/gpu_check/exporter/exporter.h"

namespace dws::gpu_check {
namespace {

constexpr uint64_t kLoadBytes = uint64_t{1} << 30;

// This process's memory on the device. It stays until the process ends.
class Owner {
 public:
  static Result<std::unique_ptr<Owner>> Create(const std::string& gpu) {
    DWS_ASSIGN_OR_RETURN(const cuda::CudaDriverPtr driver, cuda::CudaDriver::Load());
    std::unique_ptr<Owner> owner(new Owner);
    DWS_ASSIGN_OR_RETURN(owner->device_, cuda::CudaDevice::Open(driver, gpu, cuda::KernelImage()));
    DWS_RETURN_IF_ERROR(owner->device_->Enter());
    DWS_ASSIGN_OR_RETURN(owner->stream_, owner->device_->CreateStream());
    return owner;
  }

  int ordinal() const { return device_->ordinal(); }

  Result<JsonMessage> Obey(const Json& request) {
    const std::string what = request["do"];
    if (what == "allocate") return Allocate(request);
    if (what == "export") return Export();
    if (what == "read") return Read(request["tensor"]);
    if (what == "prepare load") return PrepareLoad();
    if (what == "load") return Load(request["seconds"]);
    return InvalidArgumentError("unknown request '{}'", what);
  }

 private:
  Owner() = default;

  Result<JsonMessage> Allocate(const Json& request) {
    const std::string kind = request["kind"];
    const uint64_t offset = request["offset_bytes"];
    const uint64_t size = request["tensor_bytes"];
    std::vector<std::byte> content(size);
    for (uint32_t i = 0; i < request["count"].get<uint32_t>(); ++i) {
      DWS_ASSIGN_OR_RETURN(const uint64_t base, AllocateAs(*device_, kind, offset + size,
                                                           request["chunk_bytes"].get<uint64_t>()));
      FillPattern(content, static_cast<uint32_t>(tensors_.size()));
      DWS_RETURN_IF_ERROR(stream_.CopyToDevice(base + offset, content));
      DWS_RETURN_IF_ERROR(stream_.Synchronize());
      tensors_.push_back({.address = base + offset, .size_bytes = size});
    }
    return JsonMessage{.json = Json::object(), .descriptors = {}};
  }

  Result<JsonMessage> Export() {
    DWS_ASSIGN_OR_RETURN(cuda::ExportedMemory exported, cuda::ExportMemory(*device_, tensors_));
    return JsonMessage{.json = ToJson(exported), .descriptors = std::move(exported.descriptors)};
  }

  Result<JsonMessage> Read(uint32_t tensor) {
    std::vector<std::byte> content(tensors_[tensor].size_bytes);
    DWS_RETURN_IF_ERROR(stream_.CopyToHost(content, tensors_[tensor].address));
    DWS_RETURN_IF_ERROR(stream_.Synchronize());
    const Digest digest = DigestBytes(content, 0);
    return JsonMessage{.json = {{"lane0", digest.lane0}, {"lane1", digest.lane1}},
                       .descriptors = {}};
  }

  // A generating engine reads its weights again and again; so does the digest.
  Result<JsonMessage> PrepareLoad() {
    if (load_ == nullptr) {
      DWS_ASSIGN_OR_RETURN(const uint64_t free, device_->FreeBytes());
      const uint64_t size = std::min(kLoadBytes, free / 4);
      DWS_ASSIGN_OR_RETURN(load_bytes_, device_->Allocate(size));
      const std::vector<cuda::Place> places = {
          {.base = load_bytes_.address(), .run_elements = size / 2, .stride_elements = size / 2}};
      DWS_ASSIGN_OR_RETURN(load_, cuda::DeviceWeights::Create(device_, places, {}));
      for (uint64_t at = 0; at + limits::kBlockElements <= size / 2; at += limits::kBlockElements) {
        blocks_.push_back({.first_element = at,
                           .elements = limits::kBlockElements,
                           .place = 0,
                           .element_bytes = 2});
      }
    }
    return JsonMessage{.json = Json::object(), .descriptors = {}};
  }

  Result<JsonMessage> Load(double seconds) {
    const RealClock clock;
    const TimePoint start = clock.Now();
    uint64_t rounds = 0;
    while (ToSeconds(clock.Now() - start) < seconds) {
      DWS_RETURN_IF_ERROR(load_->Digests(blocks_, 1, Pace::kPaused).status());
      ++rounds;
    }
    const double took = ToSeconds(clock.Now() - start);
    const double bytes = static_cast<double>(rounds * blocks_.size()) * limits::kBlockElements * 2;
    return JsonMessage{.json = {{"gigabytes_per_second", bytes / took * 1e-9}}, .descriptors = {}};
  }

  cuda::CudaDevicePtr device_;
  cuda::CudaStream stream_;
  std::vector<cuda::DeviceRange> tensors_;
  cuda::CudaBuffer load_bytes_;
  std::unique_ptr<cuda::DeviceWeights> load_;
  std::vector<cuda::DigestBlock> blocks_;
};

JsonMessage ErrorOf(const Status& status) {
  return {.json = {{"error", ToString(status)}}, .descriptors = {}};
}

}  // namespace

int RunExporter(const std::string& gpu) {
  const UniqueFd socket(kExporterSocket);
  Result<std::unique_ptr<Owner>> owner = Owner::Create(gpu);
  if (!owner.ok()) {
    (void)SendJson(socket, ErrorOf(owner.status()));
    return 1;
  }
  Status said = SendJson(socket, {.json = {{"ordinal", (*owner)->ordinal()}}, .descriptors = {}});
  while (said.ok()) {
    const Result<JsonMessage> request = ReceiveJson(socket, -1);
    if (!request.ok()) break;  // the starting process has ended
    Result<JsonMessage> answer = (*owner)->Obey(request->json);
    if (!answer.ok()) answer = ErrorOf(answer.status());
    said = SendJson(socket, *answer);
  }
  return 0;
}

}  // namespace dws::gpu_check
