// Delta objects from one sender to many receivers at once: an epoch's communicator and the device
// memory it works with. The sender's Broadcaster and the receivers' BroadcastMember use it; who is
// in it, and when, they agree on over the Sync stream.
//
//   1. An object goes in pieces through two slots: while one piece is on its way, the host fills
//      (sender) or empties (receiver) the other slot.
//   2. Each piece is awaited; one that does not come by the deadline ends the channel on this side,
//      and then on the others, whose pieces do not come either.
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

// Lifecycle: Join; after an error of Send or Receive it is only destroyed, which aborts what is
// under way. Threads: one at a time.
class BroadcastChannel {
 public:
  // Where a rank takes its part: `lanes` makes its device memory. `clock` outlives all channels.
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
  // Until when something is awaited, and what ends the wait before.
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
  // The others. `object` has the size that rank 0 sends; empty with `size_bytes` set: takes part,
  // and keeps nothing.
  Status Receive(MutableByteSpan object, uint64_t size_bytes, const Until& until);

 private:
  BroadcastChannel(const Clock& clock, std::unique_ptr<DeviceLane> lane)
      : clock_(clock), lane_(std::move(lane)) {}
  // Until the stream has done all it was asked for.
  Status AwaitStream(Patience& patience);

  const Clock& clock_;
  std::unique_ptr<DeviceLane> lane_;
  std::unique_ptr<NcclCommunicator> communicator_;
};

}  // namespace dws::nccl
