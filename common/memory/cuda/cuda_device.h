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

// Memory of a device, or page-locked memory of the host that the device can read. Owns the memory,
// except bytes that Pin has locked: those belong to Pin's caller. Moved, never copied. Lifecycle:
// keeps its device open. The destructor frees or unpins; synchronize all work on the memory before.
// Threads: one moves or destroys it while no other uses it.
class CudaBuffer {
 public:
  CudaBuffer() = default;
  CudaBuffer(CudaBuffer&& other) noexcept;
  CudaBuffer& operator=(CudaBuffer&& other) noexcept;
  ~CudaBuffer();

  uint64_t size_bytes() const { return size_bytes_; }
  // The address in the device's address space.
  uint64_t address() const { return address_; }
  // Empty unless this is page-locked memory.
  MutableByteSpan host_bytes() const;

 private:
  friend class CudaDevice;
  enum class Kind { kDevice, kMapped, kPinned, kBorrowed, kShared };

  Kind kind_ = Kind::kDevice;
  CudaDevicePtr device_;
  uint64_t address_ = 0;
  std::byte* host_ = nullptr;
  uint64_t size_bytes_ = 0;
  uint64_t mapped_bytes_ = 0;  // of kMapped: with the rest of the last granule
};

// Runs device work in order. Lifecycle: as CudaBuffer. Threads: one at a time.
class CudaStream {
 public:
  CudaStream() = default;
  CudaStream(CudaStream&& other) noexcept;
  CudaStream& operator=(CudaStream&& other) noexcept;
  ~CudaStream();

  bool is_open() const { return device_ != nullptr; }

  // Each method queues work behind all earlier work of this stream and returns at once. INTERNAL:
  // the driver's error, which the message names; after one failure a device fails until this
  // process restarts. Host memory should be page-locked (otherwise the copy is slow), and must not
  // be touched until the work is done.
  Status CopyToDevice(uint64_t target, ByteSpan source) const;
  Status CopyToHost(MutableByteSpan target, uint64_t source) const;
  Status CopyOnDevice(uint64_t target, uint64_t source, uint64_t size_bytes) const;
  Status Zero(uint64_t target, uint64_t size_bytes) const;
  // `args` is the kernel's struct. Each of the `items` work items takes a warp; the grid is chosen
  // for them.
  template <typename Args>
  Status Launch(Kernel kernel, const Args& args, uint64_t items) const {
    return LaunchKernel(kernel, &args, items);
  }
  // Waits until all work is done. Returns an error if any of it failed.
  Status Synchronize() const;

 private:
  friend class CudaDevice;
  Status LaunchKernel(Kernel kernel, const void* args, uint64_t items) const;

  CudaDevicePtr device_;
  void* stream_ = nullptr;
};

// Lifecycle: open as long as a CudaDevicePtr holds it. Threads: safe from any.
class CudaDevice : public std::enable_shared_from_this<CudaDevice> {
 public:
  // Opens the device with this UUID ("GPU-..."), whatever its number in this process, and loads the
  // kernels of `image`. NOT_FOUND: this process does not see the device; the message lists those
  // that it sees and what to check (CUDA_VISIBLE_DEVICES, the container's devices). UNIMPLEMENTED:
  // `image` is empty, or the device is a MIG instance. INTERNAL: the driver's error.
  static Result<CudaDevicePtr> Open(CudaDriverPtr driver, std::string_view uuid, ByteSpan image);
  ~CudaDevice();

  int ordinal() const { return ordinal_; }  // in this process only
  const std::string& uuid() const { return uuid_; }
  const std::string& name() const { return name_; }  // "NVIDIA H200"
  const CudaDriver& driver() const { return *driver_; }

  // 0 bytes give an empty buffer. RESOURCE_EXHAUSTED: no memory; Allocate's message says how much
  // was wanted and how much is free.
  Result<CudaBuffer> Allocate(uint64_t size_bytes) const;
  // Memory that can be lent to other processes by a POSIX descriptor, in other containers too. On a
  // device without such memory it is like Allocate's, which is lent by a legacy handle.
  Result<CudaBuffer> AllocateToLend(uint64_t size_bytes) const;
  Result<CudaBuffer> AllocatePinned(uint64_t size_bytes) const;
  // Page-locks memory of the host, which must stay mapped until the buffer is destroyed. If this
  // process has already page-locked it for another device, that device's buffer owns the lock and
  // must be destroyed last.
  Result<CudaBuffer> Pin(MutableByteSpan host) const;
  // A stream that waits for no other stream, and for which none waits.
  Result<CudaStream> CreateStream() const;
  Result<uint64_t> FreeBytes() const;

  // Makes the device's context the calling thread's context. Call it before calls to driver() that
  // need one.
  Status Enter() const;

 private:
  friend class CudaBuffer;
  friend class CudaStream;
  CudaDevice() = default;
  Status LoadKernels(ByteSpan image);
  bool Has(DeviceAttribute attribute) const;
  // Adds to `error`, the driver's, what was wanted.
  Status OutOf(const Status& error, uint64_t size_bytes) const;
  // Maps a chunk of its own. The buffer is empty if the driver gives out no such memory.
  Result<CudaBuffer> MapChunk(uint64_t size_bytes) const;

  CudaDriverPtr driver_;
  int ordinal_ = 0;
  int device_ = 0;  // the driver's number of the device
  std::string uuid_;
  std::string name_;
  uint32_t multiprocessors_ = 0;
  void* context_ = nullptr;
  void* module_ = nullptr;
  void* kernels_[kKernelCount] = {};
};

}  // namespace dws::cuda
