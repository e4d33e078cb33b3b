// What a rank has pushed in one attempt: taken from its outbox, offered to the owners or to a
// combiner, lent to them, and freed when they have added it. What this sender combines for an owner
// elsewhere follows the rank's own pieces for that owner.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/train_state/outbox_state.h"
#include "proto/train.pb.h"
#include "sender_daemon/on_demand/minibatch/rank_memory.h"

namespace dws {

// The gradients of a piece, readable while `keeper` lives. The rank may write them at any time.
struct LentPiece {
  DType dtype = DType::kBF16;
  ByteSpan bytes;
  std::shared_ptr<const void> keeper;
};

// The sum of a host's pieces of one unit.
struct HostSum {
  UnitIndex unit;
  LentPiece piece;
  bool rounded = false;  // see v1::PieceOffer
};

// Lifecycle: one for each Join of the rank. Threads: one at a time.
class PushedPieces {
 public:
  PushedPieces(std::shared_ptr<RankMemory> memory, uint32_t owners);

  // Frees what is there, and takes pushes of this attempt.
  void Open(const AttemptId& attempt);
  // Takes what the rank has filled since. INVALID_ARGUMENT: the outbox has what no rank writes, or
  // pushes out of order; the message says which. Then the rank is to be given up.
  Status Take();
  // The rank has pushed everything, `count` pushes. Codes: as OutboxState::Finish; INVALID_ARGUMENT
  // also if fewer were counted than pushed.
  Status Finish(const AttemptId& attempt, uint64_t count, double weight);
  // Once: all pushes that Finish has counted are taken.
  bool TakeFinished();

  // See OutboxState. What is added is freed.
  Status OnAck(const PieceRoute& route, const PieceAck& ack);
  Status OnWanted(const PieceRoute& route, const PieceWanted& wanted) {
    return state_.OnWanted(route, wanted);
  }
  Status OnFinishAck(const PieceRoute& route, const FinishAck& ack) {
    return state_.OnFinishAck(route, ack);
  }
  Status OnCombineRequest(TrainerRank from, const CombineRequest& request) {
    return state_.OnCombineRequest(from, request);
  }
  [[nodiscard]] bool Hold(TrainerRank owner) { return state_.Hold(owner); }
  void Forward(TrainerRank owner, std::vector<HostSum> sums);
  void OnConnect(TrainerRank to) { state_.OnConnect(to); }
  // The messages on a route that are due, without what all of them carry.
  std::vector<v1::TrainMessage> Due(const PieceRoute& route, TimePoint now);

  // ABORTED: the piece has been added, or its attempt is over.
  Result<LentPiece> Lend(const PieceRoute& route, const PiecePull& pull) const;
  const RankMemory& memory() const { return *memory_; }
  const OutboxState& state() const { return state_; }

 private:
  struct Push {
    std::vector<OutboxPiece> pieces;  // of the owners that have not added theirs
    size_t taken = 0;                 // of all owners
  };
  const OutboxPiece* Find(TrainerRank owner, uint64_t number) const;
  const HostSum& SumOf(TrainerRank owner, UnitIndex unit) const;
  // Gives complete pushes to the state, in order.
  Status Advance();

  const std::shared_ptr<RankMemory> memory_;
  const uint32_t owners_;
  OutboxState state_;
  std::map<uint64_t, Push> pushes_;  // by number
  std::map<TrainerRank, std::vector<HostSum>> forwarded_;
  uint64_t pushed_ = 0;
  std::optional<PushFinish> finish_;  // that waits for pushes
  bool finished_ = false;             // for TakeFinished
};

}  // namespace dws
