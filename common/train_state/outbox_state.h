// The pusher's side of a rank's outbox: which pushes wait in which slot, which owners have added
// their piece, and what to offer again. No I/O, no clock, no threads, no bytes: the rank's sender
// feeds it and carries out what it says.
//
// A push is the gradient of one unit and one microbatch, in one slot; each owner has its piece of
// it. A slot is free when every owner has acknowledged its piece; slots are used in turn. If all
// are in use the rank waits.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/train_state/train_messages.h"

namespace dws {

// Lifecycle: lives as long as the outbox. Threads: one at a time.
class OutboxState {
 public:
  struct Messages {
    std::vector<PieceOffer> offers;
    std::optional<PushFinish> finish;
  };

  OutboxState(uint32_t owners, uint32_t slots);

  // All slots are free, and numbers start again. The attempt must be later than the last one.
  void Open(const AttemptId& attempt);

  // The slot to write the next push to; none: all are in use, see WaitsFor.
  std::optional<OutboxSlot> FreeSlot() const;
  // FreeSlot() is written. ABORTED: the attempt is over. FAILED_PRECONDITION: it is finished.
  // RESOURCE_EXHAUSTED: there is no free slot, or the attempt has limits::kAttemptPiecesMax pushes.
  Status Push(const AttemptId& attempt, UnitIndex unit);
  // The rank has pushed all. Codes as Push; INVALID_ARGUMENT: a weight that no rank can have.
  Status Finish(const AttemptId& attempt, double weight);

  // Answers of an owner; those of other attempts are ignored. INVALID_ARGUMENT: about pieces that
  // were not pushed.
  Status OnAck(TrainerRank owner, const PieceAck& ack);
  Status OnWanted(TrainerRank owner, const PieceWanted& wanted);
  Status OnFinishAck(TrainerRank owner, const FinishAck& ack);
  // The stream to this owner is a new one: all it has not acknowledged is offered again.
  void OnConnect(TrainerRank owner);

  // What a pull is about; none: the owner has acknowledged it, or it is of another attempt.
  std::optional<PieceOffer> Find(TrainerRank owner, const PiecePull& pull) const;
  // What to send to the owner now: what is new, or all it has not acknowledged if that was sent
  // limits::kTrainRepeat ago. Send the Finish last.
  Messages Due(TrainerRank owner, TimePoint now);

  // Every owner has acknowledged everything, the Finish included.
  bool delivered() const { return WaitsFor().empty(); }
  // The owners that have not, ascending.
  std::vector<TrainerRank> WaitsFor() const;
  uint64_t in_use() const { return pushed_ - AddedByAll(); }  // slots
  const AttemptId& attempt() const { return attempt_; }
  const std::optional<PushFinish>& finish() const { return finish_; }

 private:
  struct Owner {
    uint64_t added = 0;  // acknowledged
    uint64_t sent = 0;   // offered
    bool finish_sent = false;
    bool finish_acknowledged = false;
    TimePoint sent_at = {};
  };

  Status MayPush(const AttemptId& attempt) const;
  Status Acknowledge(TrainerRank owner, uint64_t through);
  uint64_t AddedByAll() const;
  PieceOffer OfferOf(uint64_t number) const;
  bool Owes(const Owner& owner) const;

  AttemptId attempt_;
  std::vector<UnitIndex> units_;  // by slot
  std::vector<Owner> owners_;
  uint64_t pushed_ = 0;
  std::optional<PushFinish> finish_;
};

}  // namespace dws
