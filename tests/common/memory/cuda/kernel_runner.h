// Runs kernels in tests: the same cases run with every runner. Addresses are the runner's; tests
// access its memory only through it.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/memory/cuda/kernels/kernel_args.h"

namespace dws::cuda {

// Lifecycle: memory lives until Clear or the runner's end. Threads: one.
class KernelRunner {
 public:
  virtual ~KernelRunner() = default;

  // Memory of exactly `size_bytes`, at a multiple of 16.
  virtual uint64_t Allocate(uint64_t size_bytes) = 0;
  virtual void Write(uint64_t address, ByteSpan bytes) = 0;
  virtual void Read(uint64_t address, MutableByteSpan bytes) = 0;
  // Runs the kernel with its struct at `args` for `items` work items; returns when it has finished.
  virtual void LaunchKernel(Kernel kernel, const void* args, uint64_t items) = 0;
  virtual void Clear() = 0;

  uint64_t Put(ByteSpan bytes) {
    const uint64_t address = Allocate(bytes.size());
    Write(address, bytes);
    return address;
  }
  template <typename T>
  uint64_t PutItems(const std::vector<T>& items) {
    return Put(std::as_bytes(std::span(items)));
  }
  std::vector<std::byte> ReadBytes(uint64_t address, uint64_t size_bytes) {
    std::vector<std::byte> bytes(size_bytes);
    Read(address, bytes);
    return bytes;
  }
  template <typename T>
  std::vector<T> ReadItems(uint64_t address, uint64_t count) {
    std::vector<T> items(count);
    Read(address, std::as_writable_bytes(std::span(items)));
    return items;
  }
  template <typename Args>
  void Launch(Kernel kernel, const Args& args, uint64_t items) {
    LaunchKernel(kernel, &args, items);
  }
};

// The runner that this program links: kernel_runner.cc runs kernels compiled for the host, in this
// process's memory; tests/gpu/device_runner.cc runs those of a device.
std::unique_ptr<KernelRunner> MakeKernelRunner();

}  // namespace dws::cuda
