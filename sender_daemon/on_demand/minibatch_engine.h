// Training on demand as one sender does it: a job, and the threads and connections that carry out
// what it says.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "proto/on_demand.pb.h"
#include "proto/sender_status.pb.h"
#include "sender_daemon/on_demand/piece_adder.h"
#include "sender_daemon/on_demand/train_job.h"
#include "sender_daemon/on_demand/train_listener.h"

namespace dws {

class OwnerLinks;
class TrainPeers;

// Lifecycle: Connect before anything is connected; Stop before `links` and `peers` end. Threads:
// safe from any; no call blocks for long.
class MinibatchEngine final : public TrainListener {
 public:
  struct Options {
    std::string job_id;
    TrainerRank rank;
    uint32_t ranks = 1;
    RankEpoch epoch;  // of this process: above that of every earlier one
    Duration peer_timeout = limits::kTrainPeerTimeoutDefault;
  };
  // A rank that joins.
  struct Joining {
    uint64_t member = 0;  // names the process in later calls; above all earlier ones
    StreamId stream;
    uint32_t world_size = 0;
    WeightVersion version;  // that it has published
    Digest common;          // CommonDigest
    uint32_t units = 0;
    std::string process;  // "pid 7", for people
    std::shared_ptr<RankMemory> memory;
  };

  MinibatchEngine(Options options, ThreadPool& pool, const Clock& clock);
  ~MinibatchEngine() override;

  void Connect(OwnerLinks& links, TrainPeers& peers);
  void Stop();

  // FAILED_PRECONDITION: the job has another number of ranks, or other units, or is at another
  // version; or a later process has joined.
  Status Join(Joining joining);
  // The rank's process is gone, unless another one has taken its place.
  void Leave(uint64_t member);
  // Calls what(job) for the member, and carries out what follows. FAILED_PRECONDITION: another
  // process has joined, or none.
  Status ForMember(uint64_t member, const std::function<Status(TrainJob&)>& what);
  Result<v1::MinibatchView> View(uint64_t member) const;
  // `on_view` is called after each change of the view, without a lock.
  void SetOnView(std::function<void()> on_view);

  void FillStatus(v1::OnDemandStatus& status) const;

  // OK: the rank may publish this version now; also if it has not joined.
  Status MayPublish(WeightVersion version) const;
  void OnPublished(WeightVersion version);

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
  // Calls change(job) if there is a job, of this number if that is given, and carries out what
  // follows.
  void WithJob(const Change& change, uint64_t number = 0);
  TrainJob::Outputs OutputsOf(uint64_t number);
  Status CheckJoins(const Joining& joining) const;

  const Options options_;
  ThreadPool& pool_;
  const Clock& clock_;
  OwnerLinks* links_ = nullptr;
  TrainPeers* peers_ = nullptr;
  mutable Mutex mutex_;
  std::function<void()> on_view_ GUARDED_BY(mutex_);
  uint64_t jobs_ GUARDED_BY(mutex_) = 0;  // so far; the number of the job
  uint64_t member_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, uint64_t> pulled_bytes_ GUARDED_BY(mutex_);  // by way
  std::unique_ptr<TrainJob> job_ GUARDED_BY(mutex_);
  std::unique_ptr<PiecePuller> puller_;
  PieceAdder adder_;
  LoopThread ticks_;
};

}  // namespace dws
