// Acknowledgements are cumulative, so one that is lost is made good by the next; what stays
// unacknowledged is offered again, and the other side tells what it has already. The comments give
// the numbers of the rules in the header.
#include "common/train_state/outbox_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"

namespace dws {

OutboxState::OutboxState(uint32_t owners, uint32_t slots) : owners_(owners), pending_(slots) {
  DWS_CHECK(owners > 0 && owners <= limits::kTrainRanksMax);
  DWS_CHECK(slots > 0 && slots <= limits::kOutboxPushesMax);
}

void OutboxState::Open(const AttemptId& attempt) {
  DWS_CHECK(attempt > attempt_);
  attempt_ = attempt;
  std::fill(pending_.begin(), pending_.end(), 0);
  routes_.clear();
  combiners_.clear();
  for (uint32_t o = 0; o < owners_; ++o) routes_[DirectTo(TrainerRank(o))] = {};
  pushed_ = 0;
  finish_.reset();
  for (const auto& [owner, early] : std::exchange(early_, {})) {
    DWS_CHECK(OnCombineRequest(early.rank, early.request).ok());  // it was checked when it came
  }
}

std::optional<OutboxSlot> OutboxState::FreeSlot() const {
  const auto free = std::find(pending_.begin(), pending_.end(), 0);
  if (free == pending_.end()) return std::nullopt;
  return OutboxSlot(static_cast<uint32_t>(free - pending_.begin()));
}

uint64_t OutboxState::in_use() const {
  return pending_.size() - std::count(pending_.begin(), pending_.end(), 0);
}

Status OutboxState::MayPush(const AttemptId& attempt) const {
  if (attempt != attempt_) {
    return AbortedError("{} is over: the outbox is at {}", ToString(attempt), ToString(attempt_));
  }
  if (!finish_.has_value()) return OkStatus();
  return FailedPreconditionError("{} is finished with {} pushes", ToString(attempt), pushed_);
}

// Rule 1.
OutboxState::Route& OutboxState::RouteOf(TrainerRank owner, UnitIndex unit) {
  const auto asked = combiners_.find(owner);
  if (asked != combiners_.end()) {
    const std::vector<bool>& units = asked->second.request.units;
    if (unit.value() < units.size() && units[unit.value()]) {
      return routes_.at({.to = asked->second.rank, .owner = owner});
    }
  }
  return routes_.at(DirectTo(owner));
}

Status OutboxState::Push(const AttemptId& attempt, UnitIndex unit) {
  DWS_RETURN_IF_ERROR(MayPush(attempt));
  const std::optional<OutboxSlot> slot = FreeSlot();
  if (!slot.has_value() || pushed_ >= limits::kAttemptPiecesMax) {
    return ResourceExhaustedError("push {} of {}: {} of {} slots are in use, and {} is the last",
                                  pushed_ + 1, ToString(attempt), in_use(), pending_.size(),
                                  limits::kAttemptPiecesMax);
  }
  ++pushed_;
  pending_[slot->value()] = owners_;
  for (uint32_t o = 0; o < owners_; ++o) {
    RouteOf(TrainerRank(o), unit).items.push_back({.push = pushed_, .unit = unit, .slot = *slot});
  }
  return OkStatus();
}

Status OutboxState::Finish(const AttemptId& attempt, double weight) {
  DWS_RETURN_IF_ERROR(MayPush(attempt));
  if (!std::isfinite(weight) || weight < 0 || weight > limits::kPieceWeightMax) {
    return InvalidArgumentError("a weight of {}, expected 0 to {}", weight,
                                limits::kPieceWeightMax);
  }
  finish_ = PushFinish{.attempt = attempt, .count = pushed_, .weight = weight};
  return OkStatus();
}

Status OutboxState::OnCombineRequest(TrainerRank from, const CombineRequest& request) {
  const TrainerRank owner = request.owner;
  if (from.value() >= owners_ || owner.value() >= owners_ || from == owner) {
    return InvalidArgumentError(
        "rank {} asks for the pieces for owner {}: expected two different ranks below {}",
        from.value(), owner.value(), owners_);
  }
  if (request.attempt < attempt_) return OkStatus();
  if (request.attempt > attempt_) {
    const auto known = early_.find(owner);
    const bool later = known == early_.end() || known->second.request.attempt < request.attempt;
    if (later) early_.insert_or_assign(owner, Combiner{.rank = from, .request = request});
    return OkStatus();
  }
  const bool is_new = routes_.try_emplace({.to = from, .owner = owner}).second;
  // Rule 2.
  if (is_new && !finish_.has_value()) {
    combiners_.try_emplace(owner, Combiner{.rank = from, .request = request});
  }
  return OkStatus();
}

bool OutboxState::Hold(TrainerRank owner) {
  if (finish_.has_value()) return false;
  routes_.at(DirectTo(owner)).held = true;
  return true;
}

void OutboxState::Forward(TrainerRank owner, const std::vector<UnitIndex>& units) {
  Route& route = routes_.at(DirectTo(owner));
  DWS_CHECK(route.held && finish_.has_value());
  for (const UnitIndex unit : units) route.items.push_back({.unit = unit});
  route.held = false;
}

OutboxState::Route* OutboxState::Find(const PieceRoute& route) {
  const auto found = routes_.find(route);
  return found == routes_.end() ? nullptr : &found->second;
}

Result<std::vector<OutboxState::Item>> OutboxState::OnAck(const PieceRoute& route,
                                                          const PieceAck& ack) {
  std::vector<Item> acknowledged;
  Route* const known = Find(route);
  if (ack.attempt != attempt_ || known == nullptr) return acknowledged;
  if (ack.through.value() > known->count()) {
    return InvalidArgumentError("rank {} has added piece {} for owner {}: {} were pushed",
                                route.to.value(), ack.through.value(), route.owner.value(),
                                known->count());
  }
  for (; known->added < ack.through.value(); ++known->added) {
    const Item item = known->items.front();
    known->items.pop_front();
    if (item.push > 0) --pending_[item.slot.value()];
    acknowledged.push_back(item);
  }
  known->sent = std::max(known->sent, known->added);
  return acknowledged;
}

Status OutboxState::OnWanted(const PieceRoute& route, const PieceWanted& wanted) {
  Route* const known = Find(route);
  if (wanted.attempt != attempt_ || known == nullptr) return OkStatus();
  if (wanted.from.value() == 0 || wanted.from.value() > known->count() + 1) {
    return InvalidArgumentError("rank {} wants piece {} for owner {}: {} were pushed",
                                route.to.value(), wanted.from.value(), route.owner.value(),
                                known->count());
  }
  // What is queued there is not added yet, so nothing is acknowledged by this.
  known->sent = std::max(known->added, wanted.from.value() - 1);
  known->finish_sent = false;
  return OkStatus();
}

Status OutboxState::OnFinishAck(const PieceRoute& route, const FinishAck& ack) {
  Route* const known = Find(route);
  if (ack.attempt != attempt_ || known == nullptr) return OkStatus();
  if (!finish_.has_value() || known->held) {
    return InvalidArgumentError("rank {} acknowledges a Finish for owner {} that was not sent",
                                route.to.value(), route.owner.value());
  }
  known->finish_acknowledged = true;
  return OkStatus();
}

void OutboxState::OnConnect(TrainerRank to) {
  for (auto& [route, known] : routes_) {
    if (route.to == to) known.OfferAgain();
  }
}

PieceOffer OutboxState::OfferOf(const Route& route, uint64_t number) const {
  const Item& item = route.items[number - route.added - 1];
  return {.attempt = attempt_, .number = PieceNumber(number), .unit = item.unit, .slot = item.slot};
}

std::optional<OutboxState::Item> OutboxState::Find(const PieceRoute& route,
                                                   const PiecePull& pull) const {
  const auto known = routes_.find(route);
  if (pull.attempt != attempt_ || known == routes_.end()) return std::nullopt;
  const uint64_t number = pull.number.value();
  if (number <= known->second.added || number > known->second.count()) return std::nullopt;
  return known->second.items[number - known->second.added - 1];
}

std::vector<PieceRoute> OutboxState::routes() const {
  std::vector<PieceRoute> open;
  for (const auto& [route, known] : routes_) open.push_back(route);
  return open;
}

bool OutboxState::OwesFinish(const Route& route) const {
  return finish_.has_value() && !route.held && !route.finish_acknowledged;
}

OutboxState::Messages OutboxState::Due(const PieceRoute& route, TimePoint now) {
  Route* const known = Find(route);
  if (known == nullptr || !Owes(*known)) return {};
  if (now - known->sent_at >= limits::kTrainRepeat) known->OfferAgain();
  Messages due;
  const uint64_t end = std::min(known->count(), known->added + pending_.size());  // rule 4
  for (; known->sent < end; ++known->sent) due.offers.push_back(OfferOf(*known, known->sent + 1));
  const bool all_sent = known->sent == known->count();
  if (OwesFinish(*known) && all_sent && !std::exchange(known->finish_sent, true)) {
    // Each rank's weight counts once.
    due.finish = PushFinish{.attempt = attempt_,
                            .count = known->count(),
                            .weight = route.to == route.owner ? finish_->weight : 0};
  }
  if (!due.offers.empty() || due.finish.has_value()) known->sent_at = now;
  return due;
}

std::vector<TrainerRank> OutboxState::WaitsFor() const {
  std::vector<TrainerRank> ranks;
  for (const auto& [route, known] : routes_) {
    const bool waits = Owes(known) || known.held || !finish_.has_value();
    if (waits && (ranks.empty() || ranks.back() != route.to)) ranks.push_back(route.to);
  }
  return ranks;
}

}  // namespace dws
