// The connections to all configured senders: keeps one Sync stream to each alive, feeds what
// arrives to the Subscription, and tells them what becomes of their versions.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/liveness.h"
#include "common/base/threads/loop_thread.h"
#include "common/sources/sender/sender_channel.h"
#include "common/sources/sender/sender_link.h"
#include "common/sources/source.h"
#include "common/transport/nccl/broadcast_channel.h"
#include "receiver_daemon/transfer/broadcast/broadcast_member.h"
#include "receiver_daemon/transfer/senders.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

class SyncLink;

// Lifecycle: Start or Tick, then Stop, which cancels everything and waits for it. Threads: safe
// from any.
class SyncLinks final : public Senders, public SenderLinks {
 public:
  struct Options {
    std::vector<std::string> addresses;  // of senders, as the subscription's
    std::string job_id;
    std::string receiver_id;
    std::string view = {};  // the view that is followed; empty: the trainer's own tensors
    // Where it serves other receivers, as HOST:PORT; empty: nowhere.
    std::string peer_address = {};
    PeerTls tls = {};
    // True: deltas are fetched while they are captured. Not set: only from senders on other hosts,
    // because on one host this would take cores from the capture, for which the trainer waits.
    std::optional<bool> early_deltas = {};
    Liveness* liveness = nullptr;  // waits while a description is waited for
    // Null: takes part in no broadcasts. Otherwise the objects that broadcasts bring may take
    // `broadcast_bytes_max` for all senders together; an object that is larger than its share is
    // fetched.
    const nccl::BroadcastChannel::Parts* broadcasts = nullptr;
    uint64_t broadcast_bytes_max = 0;
  };

  // `subscription` and `clock` outlive it.
  SyncLinks(Options options, Subscription& subscription, const Clock& clock);
  ~SyncLinks() override;

  void Start();
  // One round of what Start repeats every limits::kTick. A program with many SyncLinks calls it
  // from one thread in place of Start.
  void Tick();
  // Connects to every sender again.
  void Reconnect(const Status& reason);
  // Ends blocking calls, present and future, with CANCELLED. Acknowledgements still go.
  void CancelFetches();
  void Stop();

  // Totals over all senders.
  struct Broadcasts {
    uint64_t joined = 0;  // senders whose epoch is joined
    uint64_t received = 0;
    uint64_t received_bytes = 0;
    uint64_t failed = 0;
  };
  Broadcasts BroadcastTotals() const;
  SyncLink& link(const Piece& piece) const { return *links_[piece.of().sender.value()]; }
  SenderLink& sender(const Piece& piece) const override;

  Result<Description> Describe(const SyncTarget& target, TrainerRank rank) override;
  void Staged(const SyncTarget& target, TrainerRank rank) override;
  void Committed(const SyncTarget& target, TrainerRank rank,
                 const CommittedReport& report) override;
  void Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) override;

 private:
  Liveness* const liveness_;
  std::vector<std::unique_ptr<SyncLink>> links_;
  LoopThread ticks_;
};

// A spool of bytes that are in this process already, as a source returns it.
Result<Spool> SpoolOf(ByteSpan bytes, Spool::Options options);

}  // namespace dws
