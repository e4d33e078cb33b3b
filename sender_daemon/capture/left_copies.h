// GPU memory of copies (gpu_copies.h) that registrations have left while receivers still had them
// on loan. It stays allocated as long as a receiver has it mapped, whatever the sender does, so the
// next registration keeps its copy there instead of taking more memory beside it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <set>
#include <string>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/memory/cuda/cuda_device.h"

namespace dws {

// Does not own memory: it knows what loans hold. There are at most as many entries as loans have
// copies. Lifecycle: one for all registrations with a sender. Threads: safe from any.
class LeftCopies {
 public:
  using Memory = std::shared_ptr<const cuda::CudaBuffer>;

  // The registration that kept its copy in `memory` has ended.
  void Leave(const cuda::CudaDevice& device, const Memory& memory);
  // Returns the smallest memory on the device with room for so many bytes, and not for twice as
  // many, which has no other user then. Null: there is none. A receiver that has it on loan may
  // still read it.
  Memory TakeOver(const cuda::CudaDevice& device, uint64_t size_bytes);
  // Returns whether there has ever been one on the device.
  bool Any(const cuda::CudaDevice& device) const;
  // How many are still on loan on the device, and not taken over.
  size_t Count(const cuda::CudaDevice& device) const;

 private:
  struct Left {
    std::string device_uuid;
    std::weak_ptr<const cuda::CudaBuffer> memory;
  };

  mutable Mutex mutex_;
  std::set<std::string> devices_ GUARDED_BY(mutex_);  // that ever had one
  std::vector<Left> left_ GUARDED_BY(mutex_);
};

}  // namespace dws
