// The pusher's side of a rank's outbox: which pushes wait in which slot, who has added their
// pieces, and what to offer again. No I/O, no clock, no threads, no bytes: the rank's sender feeds
// it and carries out what it says.
//
// A push is the gradient of one unit and one microbatch, in one slot; each owner has its piece of
// it. A slot is free when every piece in it is acknowledged. If all are in use the rank waits.
//
// Rules (docs/on-demand.md, the sums of a host):
//  1. A piece goes to its owner, or to a combiner that has asked for it before the push: on one
//     route, never on two. Pieces are numbered from 1 on each route, in each attempt.
//  2. A combiner that has asked gets a Finish, also if nothing goes there: because the rank has
//     finished, or another combiner has asked first.
//  3. If this sender is a combiner, its Finish to the owner follows the sums.
//  4. At most as many pieces of a route are offered and not acknowledged as the outbox has slots.
#pragma once

#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <utility>
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
  // A piece of a route.
  struct Item {
    uint64_t push = 0;  // its number, from 1; 0: the sum of a host
    UnitIndex unit;
    OutboxSlot slot = {};  // of the push
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

  // Rules 1 and 2. One of a later attempt counts when that is opened. INVALID_ARGUMENT: no such
  // rank or owner, or the owner asks itself.
  Status OnCombineRequest(TrainerRank from, const CombineRequest& request);
  // Rule 3, from now on. False: the rank has finished, and nothing has changed.
  [[nodiscard]] bool Hold(TrainerRank owner);
  // The sums for an owner whose Finish is held (CHECK), of these units, are there.
  void Forward(TrainerRank owner, const std::vector<UnitIndex>& units);

  // Answers on a route; those of other attempts, and on routes that are not open, are ignored.
  // INVALID_ARGUMENT: about pieces that were not offered.
  //
  // Returns what is acknowledged now and was not before.
  Result<std::vector<Item>> OnAck(const PieceRoute& route, const PieceAck& ack);
  Status OnWanted(const PieceRoute& route, const PieceWanted& wanted);
  Status OnFinishAck(const PieceRoute& route, const FinishAck& ack);
  // The stream to this sender is a new one: all it has not acknowledged is offered again.
  void OnConnect(TrainerRank to);

  // What a pull is about; none: it is acknowledged, or of another attempt.
  std::optional<Item> Find(const PieceRoute& route, const PiecePull& pull) const;
  // The routes that are open.
  std::vector<PieceRoute> routes() const;
  // What to send on the route now: what is new, or all it has not acknowledged if that was sent
  // limits::kTrainRepeat ago. Send the Finish last.
  Messages Due(const PieceRoute& route, TimePoint now);

  // Those that have not acknowledged everything, the Finish included; ascending.
  std::vector<TrainerRank> WaitsFor() const;
  uint64_t in_use() const;  // slots
  const AttemptId& attempt() const { return attempt_; }
  const std::optional<PushFinish>& finish() const { return finish_; }

 private:
  struct Route {
    std::deque<Item> items;  // offered or to be offered, and not acknowledged
    uint64_t added = 0;      // acknowledged
    uint64_t sent = 0;       // offered
    bool held = false;       // rule 3
    bool finish_sent = false;
    bool finish_acknowledged = false;
    TimePoint sent_at = {};

    uint64_t count() const { return added + items.size(); }
    void OfferAgain() { sent = added, finish_sent = false; }
  };
  struct Combiner {
    TrainerRank rank;
    CombineRequest request;
  };

  Status MayPush(const AttemptId& attempt) const;
  Route& RouteOf(TrainerRank owner, UnitIndex unit);
  // Null: it is not open.
  Route* Find(const PieceRoute& route);
  PieceOffer OfferOf(const Route& route, uint64_t number) const;
  bool OwesFinish(const Route& route) const;
  bool Owes(const Route& route) const { return !route.items.empty() || OwesFinish(route); }

  const uint32_t owners_;
  AttemptId attempt_;
  std::vector<uint32_t> pending_;              // by slot: pieces that are not acknowledged
  std::map<PieceRoute, Route> routes_;         // the direct ones, and those that were asked for
  std::map<TrainerRank, Combiner> combiners_;  // by owner: those that get pieces
  std::map<TrainerRank, Combiner> early_;      // by owner: the first of the latest attempt
  uint64_t pushed_ = 0;
  std::optional<PushFinish> finish_;
};

}  // namespace dws
