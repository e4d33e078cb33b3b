// One NCCL communicator that never blocks: every wait has a deadline, after which the communicator
// is aborted. Used by broadcast_channel.h.
#pragma once

#include <cstdint>
#include <memory>

#include "common/base/status.h"
#include "common/transport/nccl/nccl_api.h"
#include "common/transport/nccl/patience.h"

namespace dws::nccl {

// A rank among those of a communicator; rank 0 is the root of every broadcast.
struct Place {
  uint32_t rank = 0;
  uint32_t size = 1;
};

// Lifecycle: Join makes it. The destructor aborts it and so ends its work on the device: the stream
// becomes idle some time later. Threads: one at a time.
class NcclCommunicator {
 public:
  // An id for one communicator, to be given to all of its ranks. NCCL listens for them in this
  // process until all have joined, or for ever if they do not.
  static Result<NcclUniqueId> NewId(const NcclApi& api);

  // Returns once all ranks have joined. The device is the calling thread's (DeviceLane::Enter).
  // DEADLINE_EXCEEDED, CANCELLED: of `patience`. UNAVAILABLE, INTERNAL: NCCL's error.
  static Result<std::unique_ptr<NcclCommunicator>> Join(NcclApiPtr api, const NcclUniqueId& id,
                                                        Place place, Patience& patience);
  ~NcclCommunicator();
  NcclCommunicator(const NcclCommunicator&) = delete;
  NcclCommunicator& operator=(const NcclCommunicator&) = delete;

  // Enqueues on `stream` the broadcast of `size_bytes` at `address` from rank 0 to the same place
  // of the others, and waits until NCCL has enqueued it. Errors as Join; after one the communicator
  // cannot be used.
  Status Broadcast(uint64_t address, uint64_t size_bytes, void* stream, Patience& patience);

  // An error of the enqueued work; OK while there is none.
  Status AsyncError() const;

  const Place& place() const { return place_; }

 private:
  NcclCommunicator(NcclApiPtr api, NcclComm comm, Place place)
      : api_(std::move(api)), comm_(comm), place_(place) {}
  // Waits until NCCL has finished the call in progress.
  Status Settle(const char* what, Patience& patience) const;

  const NcclApiPtr api_;
  const NcclComm comm_;
  const Place place_;
};

}  // namespace dws::nccl
