// Runs the kernels on the machine's device, through CudaStream.
#include <catch2/catch.hpp>
#include <utility>

#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/memory/cuda/kernels/quantise/quantise_args.h"
#include "tests/common/memory/cuda/device_fixture.h"
#include "tests/common/memory/cuda/kernel_runner.h"

namespace dws::cuda {
namespace {

constexpr std::byte kGuard{0x5A};
constexpr uint64_t kGuardBytes = 64;

void Require(const Status& status) {
  INFO(ToString(status));
  REQUIRE(status.ok());
}

// Allocations have guard bytes before and behind them, which must not change.
class DeviceRunner final : public KernelRunner {
 public:
  explicit DeviceRunner(CudaDevicePtr device) : device_(std::move(device)) {
    Result<CudaStream> stream = device_->CreateStream();
    Require(stream.status());
    stream_ = *std::move(stream);
  }

  uint64_t Allocate(uint64_t size_bytes) override {
    Result<CudaBuffer> buffer = device_->Allocate(size_bytes + 2 * kGuardBytes);
    Require(buffer.status());
    memory_.push_back({.buffer = *std::move(buffer), .size_bytes = size_bytes});
    const uint64_t base = memory_.back().buffer.address();
    const std::vector<std::byte> guard(kGuardBytes, kGuard);
    Write(base, guard);
    Write(base + kGuardBytes + size_bytes, guard);
    return base + kGuardBytes;
  }
  void Write(uint64_t address, ByteSpan bytes) override {
    if (bytes.empty()) return;
    Require(stream_.CopyToDevice(address, bytes));
    Require(stream_.Synchronize());
  }
  void Read(uint64_t address, MutableByteSpan bytes) override {
    if (bytes.empty()) return;
    Require(stream_.CopyToHost(bytes, address));
    Require(stream_.Synchronize());
  }
  void LaunchKernel(Kernel kernel, const void* args, uint64_t items) override {
    if (items == 0) return;
    switch (kernel) {
      case Kernel::kStage:
      case Kernel::kStageSplit:
        return Run<StageArgs>(kernel, args, items);
      case Kernel::kCommit:
        return Run<CommitArgs>(kernel, args, items);
      case Kernel::kDigest:
        return Run<DigestArgs>(kernel, args, items);
      case Kernel::kDiff:
      case Kernel::kDiffList:
        return Run<DiffArgs>(kernel, args, items);
      case Kernel::kGather:
        return Run<GatherArgs>(kernel, args, items);
      case Kernel::kQuantise:
        return Run<QuantiseArgs>(kernel, args, items);
    }
  }
  void Clear() override {
    const std::vector<std::byte> guard(kGuardBytes, kGuard);
    for (const Memory& each : memory_) {
      const uint64_t base = each.buffer.address();
      CHECK(ReadBytes(base, kGuardBytes) == guard);
      CHECK(ReadBytes(base + kGuardBytes + each.size_bytes, kGuardBytes) == guard);
    }
    memory_.clear();
  }

 private:
  struct Memory {
    CudaBuffer buffer;
    uint64_t size_bytes = 0;
  };

  template <typename Args>
  void Run(Kernel kernel, const void* args, uint64_t items) {
    Require(stream_.Launch(kernel, *static_cast<const Args*>(args), items));
    Require(stream_.Synchronize());
  }

  const CudaDevicePtr device_;
  CudaStream stream_;
  std::vector<Memory> memory_;
};

}  // namespace

std::unique_ptr<KernelRunner> MakeKernelRunner() {
  return std::make_unique<DeviceRunner>(OpenDevice());
}

}  // namespace dws::cuda
