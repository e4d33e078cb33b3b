// The copies of a snapshot in the memory of GPUs (device_snapshot.h), as they are lent to receivers
// of this host: which there are, and which version they have. Captures change a copy in place, also
// while a receiver reads it, so receivers prove what they have read.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/memory/cuda/cuda_device.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"

namespace dws {

// Threads: safe from any.
class GpuCopies {
 public:
  using Id = uint64_t;
  struct Copy {
    cuda::CudaDevicePtr device;
    std::shared_ptr<const cuda::CudaBuffer> memory;
    std::vector<RankSlice> slices;  // ascending; they lie as GpuCopyPlaces says
    Id id = 0;                      // set by Add; a later copy may have the same memory
  };

  // Returns its number. It has no version yet.
  Id Add(Copy copy);
  void Remove(Id id);
  // A capture begins to change it: it has no version until the capture has ended.
  void Change(Id id);
  // It lacks something: it has no version until a later capture has made it whole again.
  void Distrust(Id id);
  // The capture of `version` has ended, and the copies that it changed have that version.
  void Settle(WeightVersion version);

  // All copies, which have `version`. FAILED_PRECONDITION: there is none. ABORTED: not all of them
  // have that version now.
  Result<std::vector<Copy>> At(WeightVersion version) const;
  bool empty() const;

 private:
  struct Entry {
    Copy copy;
    std::optional<WeightVersion> version;  // none: it is being changed, or distrusted
    bool changing = true;                  // by the capture that goes on
  };

  mutable Mutex mutex_;
  Id last_ GUARDED_BY(mutex_) = 0;
  std::map<Id, Entry> entries_ GUARDED_BY(mutex_);
};

}  // namespace dws
