#include "tests/common/memory/cuda/kernel_runner.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <utility>

#include "common/memory/cuda/kernels/entry/host_kernels.h"

namespace dws::cuda {
namespace {

// On a device the blocks of a launch are staged at the same time, in any order; here one after the
// other, so that a region of two blocks would go unnoticed.
void RequireRegionsApart(KernelRunner& runner, const StageArgs& args) {
  std::vector<std::pair<uint64_t, uint64_t>> regions;  // begin and end in the arena
  for (const StageBlock& block : runner.ReadItems<StageBlock>(args.blocks, args.block_count)) {
    const uint64_t bytes = StagedBytes(block.mode, block.nnz, block.elements, block.element.bytes);
    regions.emplace_back(block.staged, block.staged + bytes);
  }
  std::sort(regions.begin(), regions.end());
  for (size_t i = 1; i < regions.size(); ++i) {
    REQUIRE(regions[i - 1].second <= regions[i].first);
  }
}

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
    if (kernel == Kernel::kStage || kernel == Kernel::kStageSplit) {
      RequireRegionsApart(*this, *static_cast<const StageArgs*>(args));
    }
    RunOnHost(kernel, args);
  }
  void Clear() override { memory_.clear(); }

 private:
  std::vector<std::unique_ptr<std::byte[]>> memory_;
};

}  // namespace

std::unique_ptr<KernelRunner> MakeKernelRunner() { return std::make_unique<HostRunner>(); }

}  // namespace dws::cuda
