// One CUDA device as this process uses it: its primary context, our kernels, memory and streams.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/memory/cuda/cuda_driver.h"
#include "common/memory/cuda/kernels/kernel_args.h"

namespace dws::cuda {

class CudaDevice;
using CudaDevicePtr = std::shared_ptr<const CudaDevice>;

// Memory of a device, or page-locked memory of the host that the device can read. Owned, but for
// the bytes of pinned memory of somebody else (Pin); moved, never copied. Lifecycle: keeps its
// device open; freed or unpinned when destroyed, after the work on it was synchronized. Threads:
// one moves or destroys it while no other uses it.
class CudaBuffer {
 public:
  CudaBuffer() = default;
  CudaBuffer(CudaBuffer&& other) noexcept;
  CudaBuffer& operator=(CudaBuffer&& other) noexcept;
  ~CudaBuffer();

  uint64_t size_bytes() const { return size_bytes_; }
  // As the device sees it.
  uint64_t address() const { return address_; }
  // Of page-locked memory only.
  MutableByteSpan host_bytes() const;

 private:
  friend class CudaDevice;
  enum class Kind { kDevice, kPinned, kBorrowed, kShared };

  Kind kind_ = Kind::kDevice;
  CudaDevicePtr device_;
  uint64_t address_ = 0;
  std::byte* host_ = nullptr;
  uint64_t size_bytes_ = 0;
};

// Work in order. Lifecycle and threads: as CudaBuffer; one thread at a time.
class CudaStream {
 public:
  CudaStream() = default;
  CudaStream(CudaStream&& other) noexcept;
  CudaStream& operator=(CudaStream&& other) noexcept;
  ~CudaStream();

  bool is_open() const { return device_ != nullptr; }

  // Each begins after what was asked of this stream before, and returns at once. INTERNAL names the
  // driver's error; a device that failed once fails from then on, until this process restarts.
  // Host memory should be page-locked (else the copy is slow), and stays untouched until done.
  Status CopyToDevice(uint64_t target, ByteSpan source) const;
  Status CopyToHost(MutableByteSpan target, uint64_t source) const;
  Status CopyOnDevice(uint64_t target, uint64_t source, uint64_t size_bytes) const;
  Status Zero(uint64_t target, uint64_t size_bytes) const;
  // `args` is the kernel's struct. `items` work items of a warp each; the grid is chosen for them.
  template <typename Args>
  Status Launch(Kernel kernel, const Args& args, uint64_t items) const {
    return LaunchKernel(kernel, &args, items);
  }
  // Waits until all is done. Errors of any of it.
  Status Synchronize() const;

 private:
  friend class CudaDevice;
  Status LaunchKernel(Kernel kernel, const void* args, uint64_t items) const;

  CudaDevicePtr device_;
  void* stream_ = nullptr;
};

// Lifecycle: open as long as anybody holds it. Threads: safe from any.
class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  // The device with this UUID ("GPU-..."), whatever its number here, with the kernels of `image`.
  // NOT_FOUND: this process sees no such device; lists those it sees, and what to look at
  // (CUDA_VISIBLE_DEVICES, the container's devices). UNIMPLEMENTED: `image` is empty, or a MIG
  // instance. INTERNAL: the driver's error.
  static Result<CudaDevicePtr> Open(CudaDriverPtr driver, std::string_view uuid, ByteSpan image);
  ~CudaDevice();

  int ordinal() const { return ordinal_; }  // in this process only
  const std::string& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  const CudaDriver& driver() const { return *driver_; }

  // RESOURCE_EXHAUSTED: says how much was asked for, and how much is free. No bytes are an empty
  // buffer.
  Result<CudaBuffer> Allocate(uint64_t size_bytes) const;
  Result<CudaBuffer> AllocatePinned(uint64_t size_bytes) const;
  // Page-locks memory of the host, which stays where it is until the buffer is destroyed. What
  // this process has page-locked for another device is shared: then it stays locked as long as that
  // one's buffer, which has to be destroyed last.
  Result<CudaBuffer> Pin(MutableByteSpan host) const;
  // Work of its own order: it waits for no other stream, nor they for it.
  Result<CudaStream> CreateStream() const;
  Result<uint64_t> FreeBytes() const;

  // Makes the device's context the calling thread's: before calls to driver() that need one.
  Status Enter() const;

 private:
  friend class CudaBuffer;
  friend class CudaStream;
  CudaDevice() = default;
  Status LoadKernels(ByteSpan image);

  CudaDriverPtr driver_;
  int ordinal_ = 0;
  int device_ = 0;  // the driver's number of it
  std::string uuid_;
  std::string name_;
  uint32_t multiprocessors_ = 0;
  void* context_ = nullptr;
  void* module_ = nullptr;
  void* kernels_[kKernelCount] = {};
};

}  // namespace dws::cuda
