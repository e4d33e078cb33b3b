// The comments give the numbers of the rules in the header. Everything here is about pieces that
// come twice, late or not at all: without faults each offer is queued, pulled and added in order.
#include "common/train_state/accumulate_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"

namespace dws {

AccumulateState::AccumulateState(uint32_t ranks, uint32_t units, uint32_t slots, Counts counts)
    : slots_(slots), counts_(counts), pushers_(ranks), units_(units) {
  DWS_CHECK(ranks > 0 && ranks <= limits::kTrainRanksMax);
  DWS_CHECK(units > 0 && units <= limits::kTrainUnitsMax);
  DWS_CHECK(slots > 0 && slots <= limits::kOutboxPushesMax);
}

std::vector<TrainerRank> AccumulateState::Open(const AttemptId& attempt) {
  DWS_CHECK(attempt > attempt_);
  attempt_ = attempt;
  told_ = false;
  std::vector<TrainerRank> early;
  for (uint32_t r = 0; r < pushers_.size(); ++r) {
    Pusher& pusher = pushers_[r];
    if (pusher.early) early.emplace_back(r);
    if (pusher.adding.has_value()) ++old_adds_;
    pusher = {};
  }
  std::fill(units_.begin(), units_.end(), Unit());
  return early;
}

// Rule 7.
void AccumulateState::Ask(TrainerRank rank) {
  DWS_CHECK(counts_ == Counts::kAsked && !told_);
  pushers_.at(rank.value()).asked = true;
}

std::vector<TrainerRank> AccumulateState::AsksDue(TimePoint now) {
  std::vector<TrainerRank> due;
  for (uint32_t r = 0; r < pushers_.size(); ++r) {
    Pusher& pusher = pushers_[r];
    if (!pusher.asked || pusher.finish.has_value() || now < pusher.ask_at) continue;
    pusher.ask_at = now + limits::kTrainRepeat;
    due.emplace_back(r);
  }
  return due;
}

Status AccumulateState::Admit(TrainerRank rank, const AttemptId& attempt) {
  if (rank.value() >= pushers_.size()) {
    return InvalidArgumentError("a piece of rank {}, the job has {}", rank.value(),
                                pushers_.size());
  }
  if (attempt == attempt_) {
    if (IsCounted(pushers_[rank.value()])) return OkStatus();
    return FailedPreconditionError("a piece of rank {}, which was not asked for it", rank.value());
  }
  if (attempt < attempt_) {
    return AbortedError("{} of rank {} is over: this owner is at {}", ToString(attempt),
                        rank.value(), ToString(attempt_));
  }
  pushers_[rank.value()].early = true;
  return UnavailableError("{} of rank {} is not open yet: this owner is at {}", ToString(attempt),
                          rank.value(), ToString(attempt_));
}

Result<AccumulateState::Answer> AccumulateState::OnOffer(TrainerRank rank,
                                                         const PieceOffer& offer) {
  DWS_RETURN_IF_ERROR(Admit(rank, offer.attempt));
  Pusher& pusher = pushers_[rank.value()];
  const uint64_t number = offer.number.value();
  if (number == 0 || offer.unit.value() >= units_.size() || offer.slot.value() >= slots_) {
    return InvalidArgumentError("piece {} of rank {} is of unit {} in slot {}: there are {} and {}",
                                number, rank.value(), offer.unit.value(), offer.slot.value(),
                                units_.size(), slots_);
  }
  const uint64_t last =
      pusher.finish.has_value() ? pusher.finish->count : limits::kAttemptPiecesMax;
  if (number > last || number > pusher.added + slots_) {
    return InvalidArgumentError(
        "piece {} of rank {}: {} are added, its outbox has {} slots, and the last is {}", number,
        rank.value(), pusher.added, slots_, last);
  }
  if (number <= pusher.added) return Answer::kAcknowledge;
  const uint64_t expected = pusher.added + pusher.offers.size() + 1;
  if (number > expected) return Answer::kAskAgain;
  if (number == expected) pusher.offers.push_back(offer);
  return Answer::kQueued;
}

Status AccumulateState::OnFinish(TrainerRank rank, const PushFinish& finish) {
  DWS_RETURN_IF_ERROR(Admit(rank, finish.attempt));
  Pusher& pusher = pushers_[rank.value()];
  if (pusher.finish.has_value()) {
    if (*pusher.finish == finish) return OkStatus();
    return InvalidArgumentError(
        "rank {} finished {} with {} pieces of weight {}, and now with {} of {}", rank.value(),
        ToString(finish.attempt), pusher.finish->count, pusher.finish->weight, finish.count,
        finish.weight);
  }
  const bool possible = std::isfinite(finish.weight) && finish.weight >= 0 &&
                        finish.weight <= limits::kPieceWeightMax &&
                        finish.count <= limits::kAttemptPiecesMax;
  if (!possible || finish.count < pusher.added + pusher.offers.size()) {
    return InvalidArgumentError("rank {} finishes {} with {} pieces of weight {}: {} were offered",
                                rank.value(), ToString(finish.attempt), finish.count, finish.weight,
                                pusher.added + pusher.offers.size());
  }
  pusher.finish = finish;
  return OkStatus();
}

// An add that has begun goes on: its bytes are here.
void AccumulateState::OnConnect(TrainerRank rank) {
  Pusher& pusher = pushers_.at(rank.value());
  pusher.offers.clear();
  pusher.pulling = false;
  pusher.ask_at = {};
}

std::optional<PieceOffer> AccumulateState::NextPull(TrainerRank rank) {
  Pusher& pusher = pushers_.at(rank.value());
  if (pusher.pulling || pusher.adding.has_value() || pusher.offers.empty()) return std::nullopt;
  pusher.pulling = true;
  return pusher.offers.front();
}

void AccumulateState::OnPullFailed(TrainerRank rank, const PiecePull& pull) {
  Pusher& pusher = pushers_.at(rank.value());
  const bool next = pull.number.value() == pusher.added + 1;
  if (pull.attempt == attempt_ && next && !pusher.adding.has_value()) pusher.pulling = false;
}

AccumulateState::Add AccumulateState::Begin(TrainerRank rank, const PiecePull& piece) {
  Pusher& pusher = pushers_.at(rank.value());
  if (piece.attempt != attempt_) return Add::kStale;
  // Rule 3. Without its offer the unit is not known: it will be offered again.
  if (piece.number.value() != pusher.added + 1) return Add::kStale;
  if (pusher.adding.has_value() || pusher.offers.empty()) return Add::kStale;
  Unit& unit = units_[pusher.offers.front().unit.value()];
  if (old_adds_ > 0 || unit.busy) return Add::kBusy;  // rule 5
  unit.busy = true;
  pusher.adding = pusher.offers.front().unit;
  return std::exchange(unit.touched, true) ? Add::kAdd : Add::kStore;  // rule 4
}

bool AccumulateState::Added(TrainerRank rank, const PiecePull& piece) {
  if (piece.attempt != attempt_) {
    DWS_CHECK(old_adds_ > 0);
    --old_adds_;
    return false;
  }
  Pusher& pusher = pushers_.at(rank.value());
  DWS_CHECK(pusher.adding.has_value() && piece.number.value() == pusher.added + 1);
  units_[pusher.adding->value()].busy = false;
  pusher.adding.reset();
  pusher.pulling = false;
  ++pusher.added;
  // After a new connection the piece may not have been offered again yet.
  if (!pusher.offers.empty() && pusher.offers.front().number == piece.number) {
    pusher.offers.pop_front();
  }
  return true;
}

PieceAck AccumulateState::acknowledged(TrainerRank rank) const {
  return {.attempt = attempt_, .through = PieceNumber(pushers_.at(rank.value()).added)};
}

PieceWanted AccumulateState::wanted(TrainerRank rank) const {
  const Pusher& pusher = pushers_.at(rank.value());
  return {.attempt = attempt_, .from = PieceNumber(pusher.added + pusher.offers.size() + 1)};
}

bool AccumulateState::IsComplete(const Pusher& pusher) {
  return pusher.finish.has_value() && pusher.added == pusher.finish->count;
}

bool AccumulateState::sealed() const {
  bool any = false;
  for (const Pusher& pusher : pushers_) {
    if (!IsCounted(pusher)) continue;
    if (!IsComplete(pusher)) return false;
    any = true;
  }
  return any;
}

std::optional<double> AccumulateState::TakeSealed() {
  if (told_ || !sealed()) return std::nullopt;
  told_ = true;
  double weight = 0;
  for (const Pusher& pusher : pushers_) {
    if (IsCounted(pusher)) weight += pusher.finish->weight;
  }
  return weight;
}

std::vector<TrainerRank> AccumulateState::WaitsFor() const {
  std::vector<TrainerRank> ranks;
  for (uint32_t r = 0; r < pushers_.size(); ++r) {
    if (IsCounted(pushers_[r]) && !IsComplete(pushers_[r])) ranks.emplace_back(r);
  }
  return ranks;
}

}  // namespace dws
