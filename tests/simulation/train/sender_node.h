// A simulated sender beside a rank: the product's states with their messages carried out as a
// daemon has to. Rank 0's is also the leader.
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/train_state/accumulate_state.h"
#include "common/train_state/combining.h"
#include "common/train_state/minibatch_leader_state.h"
#include "common/train_state/minibatch_member_state.h"
#include "common/train_state/outbox_state.h"
#include "tests/simulation/network.h"
#include "tests/simulation/train/rank_node.h"

namespace dws::sim {

// The bytes of a piece, which are pulled.
struct PieceBytes {
  PiecePull piece;
  int64_t gradient = 0;
};

struct TrainMessage {
  TrainingJob job;
  TrainerRank from;
  std::variant<TrainDown, TrainReport, PieceOffer, PiecePull, PieceBytes, PieceAck, PieceWanted,
               PushFinish, FinishAck, CombineRequest>
      body;
  // A combiner is meant, with its sums for this owner.
  std::optional<TrainerRank> combined_for = {};
};

// What adds up pieces: an owner, into memory that its rank maps, or a combiner, into its own.
struct PieceSums {
  std::optional<TrainerRank> combined_for;
  AccumulateState state;
  std::vector<std::pair<TrainerRank, PieceBytes>> waiting = {};  // for the add of another piece
  Shard combined = {};                                           // a combiner's
  std::vector<bool> units = {};                                  // that are asked for
  bool active = false;                                           // in this attempt
};

class SenderNode final : public TrainNode {
 public:
  SenderNode(TrainWorld& world, uint32_t site, TrainerRank rank);

  // By its rank, over memory that both map; only while runs().
  Result<uint64_t> Attach(WeightVersion version, const Shard& weights);
  Status Push(const AttemptId& attempt, UnitIndex unit, const std::vector<int64_t>& by_owner);
  Status Finish(const AttemptId& attempt, double weight);
  Status AskToAbandon(const AttemptId& attempt);
  Status Publish(const StepDecision& step, WeightVersion version, const Shard& weights);
  void OnRankGone();

  // Null: not up, or not the leader.
  const MinibatchLeaderState* leader() const { return leader_ ? &*leader_ : nullptr; }
  const MinibatchMemberState* member() const { return member_ ? &*member_ : nullptr; }

 private:
  void OnStart() override;
  void OnCrash() override;
  void Tick();
  void Dial(TrainerRank peer);
  void OnAccept(TrainerRank peer, const LinkPtr& link);
  void OnConnected(TrainerRank peer);
  void OnClosed(TrainerRank peer, ConnectionId link);
  void Send(TrainerRank to, decltype(TrainMessage::body) body,
            std::optional<TrainerRank> combined_for = {});
  void Receive(const TrainMessage& message);

  void Hear(const TrainMessage& message, const TrainDown& down);
  void Hear(const TrainMessage& message, const TrainReport& report);
  void Hear(const TrainMessage& message, const PieceOffer& offer);
  void Hear(const TrainMessage& message, const PiecePull& pull);
  void Hear(const TrainMessage& message, const PieceBytes& bytes);
  void Hear(const TrainMessage& message, const PieceAck& ack);
  void Hear(const TrainMessage& message, const PieceWanted& wanted);
  void Hear(const TrainMessage& message, const PushFinish& finish);
  void Hear(const TrainMessage& message, const FinishAck& ack);
  void Hear(const TrainMessage& message, const CombineRequest& request);
  // The sums that a message is for; null: there are none.
  PieceSums* SumsOf(const TrainMessage& message);

  // After every input.
  void Settle();
  void Save();
  void OpenAttempt();
  void Seal();
  void TellRank();
  void SendDue();
  void Pull(PieceSums& sums, TrainerRank from);
  void Add(PieceSums& sums, TrainerRank from, const PieceBytes& bytes);
  Shard& ShardOf(PieceSums& sums);
  void CheckCaps();
  // Its part as a combiner: sender_combining.cc.
  std::vector<std::optional<SenderHost>> Hosts() const;
  void OpenCombined(const AttemptId& attempt);
  void Combine();
  void Combine(TrainerRank owner, const std::vector<TrainerRank>& ranks);
  void AskToCombine();
  void Forward();
  void Refused(const Status& status);
  HostMemory& memory() const;
  SenderNode& Peer(TrainerRank rank) const;

  std::optional<MinibatchMemberState> member_;
  std::optional<MinibatchLeaderState> leader_;
  std::optional<PieceSums> own_;
  std::map<TrainerRank, PieceSums> combined_;  // by owner
  std::optional<OutboxState> outbox_;
  std::optional<AttemptId> opened_;
  std::vector<LinkPtr> links_;  // by peer
  uint64_t session_ = 0;
  uint64_t last_session_ = 0;
};

}  // namespace dws::sim
