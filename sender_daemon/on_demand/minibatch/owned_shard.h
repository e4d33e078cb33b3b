// The owner's side of gradients: takes offers of all ranks, has their pieces pulled and added, and
// sealed when all are there. A combiner has one for each owner for which it adds: then the ranks
// are those that it has asked.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/proto_convert/train_convert.h"
#include "common/train_state/accumulate_state.h"
#include "sender_daemon/on_demand/minibatch/piece_puller.h"
#include "sender_daemon/on_demand/minibatch/rank_memory.h"

namespace dws {

// Lifecycle: as TrainJob. Threads: one at a time.
class OwnedShard {
 public:
  // What has to be done. None may block, or call back at once.
  struct Work {
    // Then OnPulled. False: not now.
    std::function<bool(const PieceToPull& pull)> pull;
    // Then OnAdded; the sums of a shard are those of the newest memory.
    std::function<void(TrainerRank from, const PiecePull& piece, UnitIndex unit, LentPiece bytes)>
        add;
    std::function<void(const AttemptId& attempt, double weight)> seal;
    std::function<void()> let_go;
  };
  // Pieces since the start of the job.
  struct Counts {
    uint64_t added = 0;
    uint64_t repeated = 0;  // offered again after they were added
    uint64_t refused = 0;
  };

  struct Options {
    StreamId stream;
    uint32_t ranks = 0;
    uint32_t units = 0;
    // The owner for which a combiner adds; none: the shard is this sender's.
    std::optional<TrainerRank> combined_for = {};
  };
  // `send` tells another rank's sender.
  using Send = std::function<void(TrainerRank to, const TrainBody& body)>;
  OwnedShard(Options options, Send send, Work work);

  // Lets go of the sums, and takes the pieces of this attempt.
  void Open(const AttemptId& attempt);
  // `sums`: that pieces have to fit. Errors of AccumulateState, and of Accumulators::CheckPiece.
  Status OnOffer(TrainerRank from, const PieceOffer& offer, const v1::PieceOffer& place,
                 const Accumulators& sums);
  Status OnFinish(TrainerRank from, const PushFinish& finish);
  // See AccumulateState.
  void Ask(TrainerRank rank) { state_.Ask(rank); }
  std::vector<TrainerRank> AsksDue(TimePoint now) { return state_.AsksDue(now); }
  // Our connection from this rank is a new one.
  void OnConnect(TrainerRank from);
  void OnPulled(const PieceToPull& pull, Result<LentPiece> bytes);
  void OnAdded(TrainerRank from, const PiecePull& piece);
  // Called every limits::kTick: pulls that have failed are tried again.
  void Tick();
  // Pulls what is next, and seals what is complete. Only while the rank is there: what would be
  // added without it is not in the memory that its next process brings.
  void Settle(bool rank_present);

  const AccumulateState& state() const { return state_; }
  // Some piece of this attempt is the sum of a host, to which an addition was rounded.
  bool rounded() const { return rounded_; }
  const Counts& counts() const { return counts_; }

 private:
  struct Waiting {
    PieceToPull pull;
    LentPiece bytes;
  };
  Result<AccumulateState::Answer> Admit(const PieceToPull& piece, const Accumulators& sums);
  void Begin(Waiting piece);
  // It is what this owner would pull now.
  bool IsNext(const PieceToPull& pull) const;

  const Options options_;
  const Send send_;
  const Work work_;
  AccumulateState state_;
  std::vector<std::map<PieceNumber, PieceToPull>> places_;  // of what is queued, by rank
  std::vector<Waiting> waiting_;                            // for the add of another piece
  std::vector<std::pair<TrainerRank, PiecePull>> failed_;   // pulls
  bool rounded_ = false;
  Counts counts_;
};

}  // namespace dws
