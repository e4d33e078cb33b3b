// What the owner of a shard knows of the pieces that all ranks push to it, in one attempt at a
// time: each piece is added once, in the order of its rank. A combiner has one for each owner
// elsewhere whose pieces its host's ranks bring it. No I/O, no clock, no threads, no bytes: the
// sender feeds it under one lock and carries out what it says.
//
// Rules (docs/on-demand.md):
//  1. Pieces of a rank are numbered from 1 in each attempt. The next one is pulled and added, an
//     older one is acknowledged again, after a gap the missing ones are asked for.
//  2. A piece of another attempt is refused. If its attempt is not open here yet, its rank is asked
//     for it when it is: until then this owner still needs the gradient that it has.
//  3. The number advances when the add has ended, not before.
//  4. The first piece of a unit is stored, the others are added, so nothing has to be cleared. A
//     unit that no piece touched counts as zero.
//  5. One add at a time for each unit. No add of an attempt begins before those of the last attempt
//     have ended.
//  6. An owner is sealed once, when every rank has said how many pieces it pushed, and all are
//     added.
//  7. A combiner counts only the ranks that it has asked in this attempt. It asks each of them
//     again and again until its Finish has come, and none once it is sealed.
#pragma once

#include <cstdint>
#include <deque>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/train_state/train_messages.h"

namespace dws {

// Lifecycle: lives as long as the owner's layout. Threads: one at a time. Ranks come from messages
// that CheckJob has accepted.
class AccumulateState {
 public:
  // What to do with an offer.
  enum class Answer : uint8_t {
    kQueued,       // nothing: NextPull will return it
    kAcknowledge,  // it is added: send acknowledged()
    kAskAgain,     // those before it are missing: send wanted()
  };
  // What to do with the bytes of a piece.
  enum class Add : uint8_t {
    kStore,  // they become the unit's sum: write them, then call Added
    kAdd,    // add them to the unit's sum, then call Added
    kBusy,   // keep them, and try again after the next Added
    kStale,  // drop them: added already, or of another attempt
  };

  // The ranks whose pieces count.
  enum class Counts : uint8_t {
    kAll,    // an owner's
    kAsked,  // a combiner's: rule 7
  };

  // `units`: that a shard may have pieces of. `slots`: of each rank's outbox.
  AccumulateState(uint32_t ranks, uint32_t units, uint32_t slots, Counts counts = Counts::kAll);

  // Forgets the last attempt and takes pieces of this one, which must be later. Returns the ranks
  // that offered too early: send wanted() to each. The gradient of the last attempt is lost with
  // the first add.
  std::vector<TrainerRank> Open(const AttemptId& attempt);

  // A combiner counts this rank, if it does not yet. Only before it is sealed (CHECK).
  void Ask(TrainerRank rank);
  // The ranks to send a CombineRequest to now.
  std::vector<TrainerRank> AsksDue(TimePoint now);

  // ABORTED: the attempt is over. UNAVAILABLE: it is not open yet, see Open. INVALID_ARGUMENT: no
  // such rank or unit, more pieces than the outbox has slots, or than its Finish has counted.
  // FAILED_PRECONDITION: the rank was not asked.
  Result<Answer> OnOffer(TrainerRank rank, const PieceOffer& offer);
  // OK: send a FinishAck, also if it came before. Other codes as OnOffer; INVALID_ARGUMENT also if
  // it differs from the first, or counts fewer pieces than were offered.
  Status OnFinish(TrainerRank rank, const PushFinish& finish);
  // The stream from this rank is a new one. What was offered on the last one is forgotten: send
  // wanted().
  void OnConnect(TrainerRank rank);

  // The next piece to pull from this rank, which is in order and not being pulled.
  std::optional<PieceOffer> NextPull(TrainerRank rank);
  // The pull was lost, came too late or damaged: NextPull returns the piece again.
  void OnPullFailed(TrainerRank rank, const PiecePull& pull);
  // The bytes of a piece are here, and proved. kStore and kAdd begin the add.
  Add Begin(TrainerRank rank, const PiecePull& piece);
  // The unit of the add that Begin has begun.
  UnitIndex adding(TrainerRank rank) const { return pushers_.at(rank.value()).adding.value(); }
  // The add has ended. Returns whether acknowledged() should be sent: not if its attempt is over.
  bool Added(TrainerRank rank, const PiecePull& piece);

  PieceAck acknowledged(TrainerRank rank) const;
  PieceWanted wanted(TrainerRank rank) const;
  // The sum of the weights, once in each attempt: when it has become sealed.
  std::optional<double> TakeSealed();
  bool sealed() const;
  const AttemptId& attempt() const { return attempt_; }
  // Some piece was stored in the unit in this attempt.
  bool touched(UnitIndex unit) const { return units_.at(unit.value()).touched; }
  // The ranks of which pieces or the Finish are missing, ascending.
  std::vector<TrainerRank> WaitsFor() const;
  size_t queued(TrainerRank rank) const { return pushers_.at(rank.value()).offers.size(); }

 private:
  struct Pusher {
    uint64_t added = 0;
    std::deque<PieceOffer> offers;  // consecutive, from added + 1
    bool pulling = false;
    std::optional<UnitIndex> adding;  // piece added + 1
    bool early = false;               // has offered a later attempt
    std::optional<PushFinish> finish;
    bool asked = false;
    TimePoint ask_at = {};
  };
  struct Unit {
    bool touched = false;
    bool busy = false;
  };

  // Rule 2.
  Status Admit(TrainerRank rank, const AttemptId& attempt);
  bool IsCounted(const Pusher& pusher) const { return counts_ == Counts::kAll || pusher.asked; }
  static bool IsComplete(const Pusher& pusher);

  const uint32_t slots_;
  const Counts counts_;
  AttemptId attempt_;
  std::vector<Pusher> pushers_;
  std::vector<Unit> units_;
  uint64_t old_adds_ = 0;  // of earlier attempts, not ended
  bool told_ = false;      // TakeSealed
};

}  // namespace dws
