// Delta objects from one sender to many receivers at once: an epoch's communicator and the device
// memory it works with. The sender's Broadcaster and the receivers' BroadcastMember use it; they
// agree over the Sync stream on the members, and on the time.
//
//   1. An object goes in pieces through two slots: while one piece is in transfer, the host fills
//      (sender) or empties (receiver) the other slot.
//   2. Each side waits for each piece. If a piece does not arrive by the deadline, the channel ends
//      on this side, and then on the other sides, whose pieces do not arrive either.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/transport/nccl/device_lane.h"
#include "common/transport/nccl/nccl_communicator.h"

namespace dws::nccl {

// Lifecycle: Join; after an error of Send or Receive the only allowed call is the destructor, which
// aborts work in progress. Threads: one at a time.
class BroadcastChannel {
 public:
  // How a rank takes part: `lanes` makes its device memory. `clock` outlives all channels.
  struct Parts {
    NcclApiPtr api;
    DeviceLaneSource lanes;
    const Clock* clock = nullptr;
  };
  // What the ranks have agreed on.
  struct Terms {
    NcclUniqueId id;
    Place place;
    uint32_t piece_bytes = 0;
  };
  // Until when the caller waits, and what ends the wait earlier.
  struct Until {
    TimePoint deadline;
    std::function<bool()> given_up;
  };

  // Returns once all ranks have joined. All errors: DEADLINE_EXCEEDED, CANCELLED: `until`.
  // UNAVAILABLE: another rank or the network. INTERNAL: this rank's library or device.
  // RESOURCE_EXHAUSTED: its device's memory.
  static Result<std::unique_ptr<BroadcastChannel>> Join(const Parts& parts, const Terms& terms,
                                                        const Until& until);
  ~BroadcastChannel();

  // Rank 0: `object` to all others.
  Status Send(ByteSpan object, const Until& until);
  // The members other than rank 0 call it. `object` has the size that rank 0 sends. If it is empty
  // and `size_bytes` is set, this member takes part and keeps nothing.
  Status Receive(MutableByteSpan object, uint64_t size_bytes, const Until& until);

 private:
  BroadcastChannel(const Clock& clock, std::unique_ptr<DeviceLane> lane)
      : clock_(clock), lane_(std::move(lane)) {}
  // Returns when the stream has done everything that was enqueued.
  Status AwaitStream(Patience& patience);

  const Clock& clock_;
  std::unique_ptr<DeviceLane> lane_;
  std::unique_ptr<NcclCommunicator> communicator_;
};

}  // namespace dws::nccl
