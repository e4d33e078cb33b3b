// A combiner's part: the sums that this sender makes of the pieces of its host's ranks for owners
// elsewhere, in memory of its own, so that a host sends each owner one sum for each unit and
// minibatch. They follow the pieces of its own rank, so the owner knows nothing of combiners.
// outbox_state.h, accumulate_state.h and combining.h have the rules.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/memory/gradients/accumulators.h"
#include "common/proto_convert/train_convert.h"
#include "common/train_state/combining.h"
#include "sender_daemon/on_demand/minibatch/owned_shard.h"
#include "sender_daemon/on_demand/minibatch/pushed_pieces.h"

namespace dws {

// Lifecycle: as TrainJob. Threads: one at a time.
class HostSums {
 public:
  struct Options {
    StreamId stream;
    TrainerRank self;
    uint32_t ranks = 0;
    uint64_t bytes_max = 0;
    bool exact = false;
    std::vector<GradientUnit> shards;           // JoinOrder
    std::vector<std::vector<uint64_t>> pushed;  // JoinOrder
  };
  // None may block, or call back at once.
  struct Outputs {
    // Tells a rank's sender, of its pieces for this owner.
    std::function<void(TrainerRank to, TrainerRank owner, const TrainBody& body)> send;
    // What adds up the pieces for an owner; its `seal` is not used.
    std::function<OwnedShard::Work(TrainerRank owner, std::shared_ptr<Accumulators> sums)> work;
    // Where all ranks' senders are; none: not known.
    std::function<std::vector<std::optional<SenderHost>>()> hosts;
  };
  struct Counts {
    uint64_t room_bytes = 0;
    uint64_t pieces = 0;  // that were added, since the start of the job
    uint64_t bytes = 0;   // of pieces that were added
  };

  HostSums(Options options, Outputs outputs);

  // Discards the sums, and takes no piece before Settle has asked for it.
  void Open(const AttemptId& attempt);
  void OnConnect(TrainerRank from);
  // Called every limits::kTick: looks again which ranks are on this host.
  void Tick();
  // Asks, pulls, and sends on what is complete. `open`: the rank takes part in the attempt of
  // `pushed`.
  void Settle(bool open, PushedPieces& pushed, TimePoint now);

  // For messages about pieces for this owner. Null: it is not combined for.
  OwnedShard* shard(TrainerRank owner);
  // What its pieces have to fit.
  const Accumulators& sums(TrainerRank owner) const { return *owners_.at(owner)->sums; }
  Counts counts() const;

 private:
  struct Owner {
    std::shared_ptr<Accumulators> sums;
    std::vector<bool> units;  // that have room
    std::unique_ptr<OwnedShard> shard;
    bool active = false;    // in the open attempt
    bool complete = false;  // and not sent on yet
  };

  // Null: there is no room for any unit.
  Owner* Find(TrainerRank owner);
  std::unique_ptr<Owner> Make(TrainerRank owner);
  // The gradients that a rank's piece for the owner has.
  uint64_t PieceElements(size_t unit, TrainerRank owner) const;
  void Begin(PushedPieces& pushed);
  void Forward(TrainerRank owner, Owner& entry, PushedPieces& pushed);

  const Options options_;
  const Outputs outputs_;
  AttemptId attempt_;
  bool look_ = false;
  std::map<TrainerRank, std::unique_ptr<Owner>> owners_;  // null: no room
  uint64_t room_bytes_ = 0;
  uint64_t bytes_ = 0;
};

}  // namespace dws
