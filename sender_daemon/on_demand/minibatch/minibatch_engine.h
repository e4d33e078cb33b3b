// Training on demand as one sender does it: a job, and the threads and connections that carry out
// what it says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "proto/on_demand.pb.h"
#include "proto/sender_status.pb.h"
#include "sender_daemon/on_demand/gather/train_listener.h"
#include "sender_daemon/on_demand/minibatch/join_order.h"
#include "sender_daemon/on_demand/minibatch/piece_adder.h"
#include "sender_daemon/on_demand/minibatch/train_job.h"

namespace dws {

class OwnerLinks;

// Lifecycle: Connect before anything is connected; Stop before `links` and what `down` uses end.
// Threads: safe from any; no call blocks for long.
class MinibatchEngine final : public TrainListener {
 public:
  struct Options {
    std::string job_id;
    TrainerRank rank;
    uint32_t ranks = 1;
    RankEpoch epoch;  // of this process: above that of every earlier one
    Duration peer_timeout = limits::kTrainPeerTimeoutDefault;
    uint64_t accumulate_bytes = 0;  // for sums of this host's gradients
  };
  // A rank that joins.
  struct Joining {
    uint64_t member = 0;  // names the process in later calls; above all earlier ones
    StreamId stream;
    uint32_t world_size = 0;
    WeightVersion version;  // that it has published
    JoinOrder order;
    std::string process;  // "pid 7", for people
    std::shared_ptr<RankMemory> memory;
  };

  MinibatchEngine(Options options, ThreadPool& pool, const Clock& clock);
  ~MinibatchEngine() override;

  // `down` sends to another rank's sender on the stream that this one has opened.
  using Down = std::function<void(TrainerRank rank, v1::TrainMessage message)>;
  void Connect(OwnerLinks& links, Down down);
  void Stop();

  // FAILED_PRECONDITION: the job has another number of ranks, or other units, or is at another
  // version; or a later process has joined. INVALID_ARGUMENT: the rank pushes to another number of
  // owners than there are.
  Status Join(Joining joining);
  // The rank's process is gone, unless another one has taken its place.
  void Leave(uint64_t member);
  // FAILED_PRECONDITION: another process of the rank has joined, or none.
  static Status NotJoined();
  // Calls what(job) for the member, and carries out what follows. NotJoined: it is not the one that
  // has joined.
  Status ForMember(uint64_t member, const std::function<Status(TrainJob&)>& what);
  Result<v1::MinibatchView> View(uint64_t member) const;
  // `on_view` is called after each change of the view, without a lock.
  void SetOnView(std::function<void()> on_view);

  void FillStatus(v1::OnDemandStatus& status) const;

  // OK: the rank may publish this version of `stream` now: before it has joined in that any, and
  // from then on what Step has led to, also while it is away.
  Status MayPublish(const StreamId& stream, WeightVersion version) const;
  void OnPublished(const StreamId& stream, WeightVersion version);

  // For the senders of other ranks. ABORTED: it is not there.
  Result<LentPiece> Lend(const v1::FetchPieceRequest& request) const;
  Result<std::shared_ptr<RankMemory>> Outbox(const v1::OpenOutboxRequest& request) const;

  void OnOwner(TrainerRank rank) override;
  void OnDown(TrainerRank from, const v1::TrainMessage& message) override;
  void OnPeer(TrainerRank rank) override;
  void OnUp(TrainerRank from, const v1::TrainMessage& message) override;
  void OnPeerGone(TrainerRank rank) override;

 private:
  using Change = std::function<void(TrainJob& job)>;
  // Calls change() under the lock, carries out what follows, and tells of a new view without it.
  Status Settled(const std::function<Status()>& change);
  // Calls change(job) if there is a job, of this number if that is given, and carries out what
  // follows.
  void WithJob(const Change& change, uint64_t number = 0);
  // FAILED_PRECONDITION: as ForMember. Under the lock.
  Status CheckMember(uint64_t member) const REQUIRES(mutex_);
  TrainJob::Outputs OutputsOf(uint64_t number);
  Status CheckJoins(const Joining& joining) const REQUIRES(mutex_);

  const Options options_;
  const Clock& clock_;
  OwnerLinks* links_ = nullptr;
  Down down_;
  mutable Mutex mutex_;
  std::function<void()> on_view_ GUARDED_BY(mutex_);
  uint64_t jobs_ GUARDED_BY(mutex_) = 0;    // so far; the number of the job
  uint64_t member_ GUARDED_BY(mutex_) = 0;  // 0: the rank is away
  uint64_t last_member_ GUARDED_BY(mutex_) = 0;
  uint64_t mapped_bytes_ GUARDED_BY(mutex_) = 0;  // pulled
  uint64_t fetched_bytes_ GUARDED_BY(mutex_) = 0;
  std::unique_ptr<TrainJob> job_ GUARDED_BY(mutex_);
  std::unique_ptr<PiecePuller> puller_;
  PieceAdder adder_;
  LoopThread ticks_;
};

}  // namespace dws
