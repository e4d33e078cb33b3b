// The connections to all configured senders: keeps one Sync stream to each alive, feeds what
// arrives to the Subscription, and is the pipeline's SenderGroup.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/pulse.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/delta_profile.h"
#include "common/transport/nccl/broadcast_channel.h"
#include "receiver_daemon/transfer/broadcast/broadcast_member.h"
#include "receiver_daemon/transfer/grpc/full_ways.h"
#include "receiver_daemon/transfer/grpc/sender_channel.h"
#include "receiver_daemon/transfer/sender_group.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

class SyncLink;

// Lifecycle: Start, then Stop, which cancels everything and waits for it. Threads: safe from any.
class SyncLinks final : public SenderGroup {
 public:
  struct Options {
    std::vector<std::string> addresses;  // of senders, as the subscription's
    std::string job_id;
    std::string receiver_id;
    std::string view = {};  // that is followed; empty: the trainer's own tensors
    PeerTls tls = {};
    ProfileChoice profile = ProfileChoice::kAuto;
    // Whether deltas are fetched while they are captured; none: from senders of other hosts. On one
    // host it would take cores from the capture, which the trainer waits for.
    std::optional<bool> early_deltas = {};
    FullWayRules full_ways = {};
    ThreadPool* pool = nullptr;  // copies what is on this host; null: the caller does alone
    Pulse* pulse = nullptr;      // waits while a transfer is waited for
    // Null: versions are fetched. Else what broadcasts bring may take so many bytes, of all senders
    // together; a larger object than its share of that is fetched.
    const nccl::BroadcastChannel::Parts* broadcasts = nullptr;
    uint64_t broadcast_bytes_max = 0;
  };

  // `subscription` and `clock` outlive it.
  SyncLinks(Options options, Subscription& subscription, const Clock& clock);
  ~SyncLinks() override;

  void Start();
  // Connects to every sender again.
  void Reconnect(const Status& reason);
  // Ends blocking calls, present and future, with CANCELLED. Acknowledgements still go.
  void CancelFetches();
  void Stop();

  // Of all senders together.
  struct Broadcasts {
    uint64_t joined = 0;  // senders whose epoch is joined
    uint64_t received = 0;
    uint64_t received_bytes = 0;
    uint64_t failed = 0;
  };
  Broadcasts BroadcastTotals() const;
  // How full tensors came, by sender.
  std::vector<FullWays::View> FullWayViews() const;

  Result<Spool> FetchObject(const SyncTarget& target, TrainerRank rank, const DeltaWant& want,
                            Spool::Options spool) override;
  // Of an announcement that has it inside, or of a broadcast.
  Result<std::optional<Spool>> TakeObject(const SyncTarget& target, TrainerRank rank,
                                          WeightVersion base, const Spool::Options& spool) override;
  Result<Description> Describe(const SyncTarget& target, TrainerRank rank) override;
  bool reads_early() const override { return true; }
  // Not beside broadcasts, which bring a version to many for the price of one.
  bool fetches_early(const SyncTarget& target, TrainerRank rank) const override;
  Result<std::vector<std::byte>> FetchEarly(const SyncTarget& target, TrainerRank rank,
                                            const DeltaWant& want, const Spool::Options& spool,
                                            const FrameTaker& take) override;
  Result<FetchedFull> FetchFull(const SyncTarget& target, TrainerRank rank, const FullWant& want,
                                Spool::Options spool) override;
  void Staged(const SyncTarget& target, TrainerRank rank) override;
  void Committed(const SyncTarget& target, TrainerRank rank,
                 const CommittedReport& report) override;
  void Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) override;

 private:
  SyncLink& Link(const SyncTarget& target, TrainerRank rank);

  Pulse* const pulse_;
  const ProfileChoice profile_;
  const Clock& clock_;
  ThreadPool alone_{0};
  std::vector<std::unique_ptr<SyncLink>> links_;
  LoopThread ticks_;
};

}  // namespace dws
