// A simulated sender beside a rank: the product's states with their messages carried out as a
// daemon has to. Rank 0's is also the leader.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "common/train_state/accumulate_state.h"
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
               PushFinish, FinishAck>
      body;
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
  void Send(TrainerRank to, decltype(TrainMessage::body) body);
  void Receive(const TrainMessage& message);

  void Hear(TrainerRank from, const TrainDown& down);
  void Hear(TrainerRank from, const TrainReport& report);
  void Hear(TrainerRank from, const PieceOffer& offer);
  void Hear(TrainerRank from, const PiecePull& pull);
  void Hear(TrainerRank from, const PieceBytes& bytes);
  void Hear(TrainerRank from, const PieceAck& ack);
  void Hear(TrainerRank from, const PieceWanted& wanted);
  void Hear(TrainerRank from, const PushFinish& finish);
  void Hear(TrainerRank from, const FinishAck& ack);

  // After every input.
  void Settle();
  void Save();
  void OpenAttempt();
  void Seal();
  void TellRank();
  void SendDue();
  void Pull(TrainerRank from);
  void Add(TrainerRank from, const PieceBytes& bytes);
  void Refused(const Status& status);
  HostMemory& memory() const;
  SenderNode& Peer(TrainerRank rank) const;

  std::optional<MinibatchMemberState> member_;
  std::optional<MinibatchLeaderState> leader_;
  std::optional<AccumulateState> accumulate_;
  std::optional<OutboxState> outbox_;
  std::optional<AttemptId> opened_;
  std::vector<LinkPtr> links_;                               // by peer
  std::vector<std::pair<TrainerRank, PieceBytes>> waiting_;  // for the add of another piece
  uint64_t session_ = 0;
  uint64_t last_session_ = 0;
};

}  // namespace dws::sim
