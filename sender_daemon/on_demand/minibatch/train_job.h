// One incarnation of a job, as one rank's sender sees it: the states of common/train_state, and
// what they tell each other. It begins with the first Join of the rank, and lasts until the rank
// joins in a later incarnation; while the rank is away, its memory stays, and with it its gradient.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/train_state/minibatch_leader_state.h"
#include "common/train_state/minibatch_member_state.h"
#include "proto/on_demand.pb.h"
#include "proto/sender_status.pb.h"
#include "sender_daemon/on_demand/minibatch/host_sums.h"
#include "sender_daemon/on_demand/minibatch/owned_shard.h"
#include "sender_daemon/on_demand/minibatch/pushed_pieces.h"
#include "sender_daemon/on_demand/minibatch/rank_memory.h"

namespace dws {

// Lifecycle: made, then Join. Threads: one at a time. Each call that changes something is followed
// by Settle.
class TrainJob {
 public:
  struct Identity {
    TrainingJob job;
    TrainerRank rank;
    RankEpoch epoch;  // of this process
    Digest common;    // CommonDigest
    Duration peer_timeout = {};
    bool exact = false;
    std::vector<GradientUnit> shards;           // JoinOrder
    std::vector<std::vector<uint64_t>> pushed;  // JoinOrder
    uint64_t accumulate_bytes = 0;              // for sums of this host's gradients

    // Makes it a message to another sender of the job, on a route if it is about pieces.
    void Address(v1::TrainMessage& message, const std::optional<PieceRoute>& route = {}) const;
    v1::TrainMessage Address(const TrainBody& body) const;
    // FAILED_PRECONDITION: a message that `from` has addressed is of another job, or has other
    // units.
    Status Check(TrainerRank from, const v1::TrainMessage& message) const;
  };
  // What has to be done. None may block, or call back at once.
  struct Outputs {
    std::function<void(TrainerRank owner, v1::TrainMessage message)> up;
    std::function<void(TrainerRank peer, v1::TrainMessage message)> down;
    OwnedShard::Work work;
    // See HostSums::Outputs.
    decltype(HostSums::Outputs::work) combined_work;
    decltype(HostSums::Outputs::hosts) hosts;
  };

  TrainJob(Identity identity, Outputs outputs, TimePoint now);

  // The rank's process, with its memory; the one before is gone. FAILED_PRECONDITION: it holds
  // another version than the job is at, and nothing has changed.
  Status Join(WeightVersion version, std::string process, std::shared_ptr<RankMemory> memory);
  // "the process pid 7 of rank 2 is gone"
  void Leave();
  // Takes what the rank has pushed.
  void OnOutbox();
  Status Finish(const AttemptId& attempt, uint64_t pushes, double weight);
  Status Abandon(const AttemptId& attempt, std::string_view reason);
  Status Skip(uint64_t minibatch);
  Status MayPublish(WeightVersion version) const;
  void OnPublished(WeightVersion version);

  // A message of this job, from a rank of it: see TrainListener. Errors: it is refused, and why.
  Status HearUp(TrainerRank from, const v1::TrainMessage& message, TimePoint now);
  Status HearDown(TrainerRank from, const v1::TrainMessage& message);
  void OnConnect(TrainerRank rank, bool up);
  void OnPeerGone(TrainerRank rank, TimePoint now);
  // What adds pieces for this owner as a combiner; without one, the own shard. Null: this sender
  // does not combine for it.
  OwnedShard* shard(std::optional<TrainerRank> combined_for = {});
  void OnSealed(const AttemptId& attempt, double weight, const GradientSum& sum);

  void Tick(TimePoint now);
  // Carries out what follows from what was told. Returns whether View has changed.
  bool Settle(TimePoint now);

  const Identity& identity() const { return identity_; }
  const std::shared_ptr<RankMemory>& memory() const { return memory_; }
  const PushedPieces& pushed() const { return *pushed_; }
  v1::MinibatchView View() const;
  void FillStatus(v1::OnDemandStatus& status, TimePoint now) const;

 private:
  void Save();
  void SendDue(TimePoint now);
  // The attempt cannot be completed because of this rank.
  void GiveUp(const Status& why, TrainerRank because_of);

  const Identity identity_;
  const Outputs outputs_;
  std::shared_ptr<RankMemory> memory_;
  std::string process_;
  std::optional<MinibatchMemberState> member_;  // from the first Join on, like those below
  std::optional<MinibatchLeaderState> leader_;  // beside rank 0
  std::unique_ptr<OwnedShard> shard_;
  std::unique_ptr<HostSums> host_sums_;  // null: it has no room for any
  std::unique_ptr<PushedPieces> pushed_;
  std::optional<AttemptId> opened_;
  std::optional<AbandonDecision> abandoned_;
  std::map<TrainerRank, std::string> refused_;  // why their last message was
  TimePoint report_at_;
  std::string seen_;  // the last View, serialised
  std::pair<MinibatchMemberState::Phase, std::optional<AttemptId>> place_;  // in the minibatch
  TimePoint place_since_;
  uint64_t abandons_ = 0;
};

}  // namespace dws
