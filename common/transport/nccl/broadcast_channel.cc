#include "common/transport/nccl/broadcast_channel.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"

namespace dws::nccl {
namespace {

// How long the device may take to release memory after an abort.
constexpr std::chrono::seconds kAbortGrace{10};

}  // namespace

Result<std::unique_ptr<BroadcastChannel>> BroadcastChannel::Join(const Parts& parts,
                                                                 const Terms& terms,
                                                                 const Until& until) {
  DWS_CHECK(terms.piece_bytes > 0);
  DWS_ASSIGN_OR_RETURN(std::unique_ptr<DeviceLane> lane, parts.lanes(terms.piece_bytes));
  DWS_RETURN_IF_ERROR(lane->Enter());
  std::unique_ptr<BroadcastChannel> channel(new BroadcastChannel(*parts.clock, std::move(lane)));
  Patience patience(*parts.clock, until.deadline, until.given_up);
  DWS_ASSIGN_OR_RETURN(channel->communicator_,
                       NcclCommunicator::Join(parts.api, terms.id, terms.place, patience));
  return channel;
}

BroadcastChannel::~BroadcastChannel() {
  if (!lane_->Enter().ok()) LogWarning("nccl_device_lost");
  communicator_.reset();
  // The memory is freed once the device no longer uses it: aborted work ends without our help.
  Patience patience(clock_, clock_.Now() + kAbortGrace, nullptr);
  const Status status = AwaitStream(patience);
  if (absl::IsDeadlineExceeded(status)) {
    LogError("nccl_memory_kept", {{"bytes", 2 * kLaneSlots * lane_->slot_bytes()},
                                  {"reason", "the device still uses it after an abort"}});
    static_cast<void>(lane_.release());
  }
}

Status BroadcastChannel::AwaitStream(Patience& patience) {
  patience.Progressed();
  while (true) {
    DWS_ASSIGN_OR_RETURN(const bool finished, lane_->Finished());
    if (finished) return OkStatus();
    if (communicator_ != nullptr) DWS_RETURN_IF_ERROR(communicator_->AsyncError());
    DWS_RETURN_IF_ERROR(patience.Pause("a broadcast"));
  }
}

Status BroadcastChannel::Send(ByteSpan object, const Until& until) {
  DWS_CHECK(communicator_->place().rank == 0);
  DWS_RETURN_IF_ERROR(lane_->Enter());
  Patience patience(clock_, until.deadline, until.given_up);
  size_t slot = 0;
  for (uint64_t offset = 0; offset < object.size(); slot = 1 - slot) {
    const uint64_t size = std::min<uint64_t>(lane_->slot_bytes(), object.size() - offset);
    // The previous piece, which may still be in transfer, is in the other slot.
    std::memcpy(lane_->host_bytes(slot).data(), object.data() + offset, size);
    DWS_RETURN_IF_ERROR(AwaitStream(patience));
    DWS_RETURN_IF_ERROR(lane_->CopyIn(slot, size));
    DWS_RETURN_IF_ERROR(
        communicator_->Broadcast(lane_->device_address(slot), size, lane_->stream(), patience));
    offset += size;
  }
  return AwaitStream(patience);
}

Status BroadcastChannel::Receive(MutableByteSpan object, uint64_t size_bytes, const Until& until) {
  DWS_CHECK(communicator_->place().rank != 0 && (object.empty() || object.size() == size_bytes));
  DWS_RETURN_IF_ERROR(lane_->Enter());
  Patience patience(clock_, until.deadline, until.given_up);
  size_t slot = 0;
  uint64_t taken = 0;  // bytes that are in `object`
  for (uint64_t offset = 0; taken < size_bytes; slot = 1 - slot) {
    const uint64_t size = std::min<uint64_t>(lane_->slot_bytes(), size_bytes - offset);
    if (size > 0) {
      DWS_RETURN_IF_ERROR(
          communicator_->Broadcast(lane_->device_address(slot), size, lane_->stream(), patience));
      if (!object.empty()) DWS_RETURN_IF_ERROR(lane_->CopyOut(slot, size));
    }
    // While this piece arrives, the previous one is taken out of the other slot.
    if (offset > taken) {
      const uint64_t before = offset - taken;
      if (!object.empty()) {
        std::memcpy(object.data() + taken, lane_->host_bytes(1 - slot).data(), before);
      }
      taken = offset;
    }
    offset += size;
    DWS_RETURN_IF_ERROR(AwaitStream(patience));
  }
  return OkStatus();
}

}  // namespace dws::nccl
