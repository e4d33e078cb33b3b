// The memory of a rank that has joined: its arena, its gradients and its outbox, as the sender maps
// them. The rank's process may write all of it at any time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/gradients/accumulators.h"
#include "common/memory/gradients/outbox.h"
#include "common/memory/host/host_region.h"
#include "sender_daemon/on_demand/minibatch/join_order.h"
#include "sender_daemon/on_demand/minibatch/record_page.h"

namespace dws {

// Lifecycle: shared by those that read or write it; it is unmapped when the last one ends. Threads:
// see the members.
class RankMemory {
 public:
  // Maps what the rank has passed, in the order of JoinRequest. INVALID_ARGUMENT: it is not what
  // `order` says.
  static Result<std::shared_ptr<RankMemory>> Map(const JoinOrder& order, uint32_t ranks,
                                                 std::vector<UniqueFd> descriptors);

  HostRegion TakeArena() { return std::move(arena_); }
  RecordPage& record() { return record_; }
  Accumulators& sums() { return sums_; }
  OutboxReader& outbox() { return outbox_; }
  // The number of pushes that the outbox has room for.
  uint32_t pushes() const { return pushes_; }
  // Names the outbox on this host; hard to guess.
  uint64_t outbox_id() const { return outbox_id_; }
  uint64_t outbox_bytes() const { return outbox_.geometry().SizeBytes(); }
  // For the senders of other ranks.
  Result<UniqueFd> OutboxDescriptor() const { return ReopenReadOnly(outbox_fd_); }
  // The memory behind the record.
  MutableByteSpan gradients() const;

 private:
  RankMemory(HostRegion arena, HostRegion gradients, Accumulators sums, OutboxReader outbox,
             UniqueFd outbox_fd, uint32_t pushes);

  HostRegion arena_;
  const HostRegion gradients_;
  RecordPage record_;
  Accumulators sums_;
  OutboxReader outbox_;
  const UniqueFd outbox_fd_;
  const uint32_t pushes_;
  const uint64_t outbox_id_;
};

}  // namespace dws
