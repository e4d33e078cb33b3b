#include "tests/common/memory/cuda/kernel_runner.h"

#include <cstring>

#include "common/memory/cuda/kernels/host_kernels.h"

namespace dws::cuda {
namespace {

// Each allocation is separate and of exactly the requested size, so that AddressSanitizer reports
// every access outside it.
class HostRunner final : public KernelRunner {
 public:
  uint64_t Allocate(uint64_t size_bytes) override {
    memory_.push_back(std::make_unique<std::byte[]>(size_bytes));
    return reinterpret_cast<uint64_t>(memory_.back().get());
  }
  void Write(uint64_t address, ByteSpan bytes) override {
    if (!bytes.empty()) std::memcpy(reinterpret_cast<void*>(address), bytes.data(), bytes.size());
  }
  void Read(uint64_t address, MutableByteSpan bytes) override {
    if (!bytes.empty()) {
      std::memcpy(bytes.data(), reinterpret_cast<const void*>(address), bytes.size());
    }
  }
  void LaunchKernel(Kernel kernel, const void* args, uint64_t /*items*/) override {
    RunOnHost(kernel, args);
  }
  void Clear() override { memory_.clear(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace

std::unique_ptr<KernelRunner> MakeKernelRunner() { return std::make_unique<HostRunner>(); }

}  // namespace dws::cuda
