// Acknowledgements are cumulative, so one that is lost is made good by the next; what stays
// unacknowledged is offered again, and the owner tells what it has already.
#include "common/train_state/outbox_state.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "common/base/check.h"

namespace dws {

OutboxState::OutboxState(uint32_t owners, uint32_t slots) : units_(slots), owners_(owners) {
  DWS_CHECK(owners > 0 && owners <= limits::kTrainRanksMax);
  DWS_CHECK(slots > 0 && slots <= limits::kOutboxPushesMax);
}

void OutboxState::Open(const AttemptId& attempt) {
  DWS_CHECK(attempt > attempt_);
  attempt_ = attempt;
  std::fill(owners_.begin(), owners_.end(), Owner());
  pushed_ = 0;
  finish_.reset();
}

uint64_t OutboxState::AddedByAll() const {
  const auto least = std::min_element(
      owners_.begin(), owners_.end(),
      [](const Owner& owner, const Owner& other) { return owner.added < other.added; });
  return least->added;
}

std::optional<OutboxSlot> OutboxState::FreeSlot() const {
  if (in_use() >= units_.size()) return std::nullopt;
  return OutboxSlot(static_cast<uint32_t>(pushed_ % units_.size()));
}

Status OutboxState::MayPush(const AttemptId& attempt) const {
  if (attempt != attempt_) {
    return AbortedError("{} is over: the outbox is at {}", ToString(attempt), ToString(attempt_));
  }
  if (!finish_.has_value()) return OkStatus();
  return FailedPreconditionError("{} is finished with {} pushes", ToString(attempt), pushed_);
}

Status OutboxState::Push(const AttemptId& attempt, UnitIndex unit) {
  DWS_RETURN_IF_ERROR(MayPush(attempt));
  const std::optional<OutboxSlot> slot = FreeSlot();
  if (!slot.has_value() || pushed_ >= limits::kAttemptPiecesMax) {
    return ResourceExhaustedError("push {} of {}: {} of {} slots are in use, and {} is the last",
                                  pushed_ + 1, ToString(attempt), in_use(), units_.size(),
                                  limits::kAttemptPiecesMax);
  }
  units_[slot->value()] = unit;
  ++pushed_;
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

Status OutboxState::Acknowledge(TrainerRank owner, uint64_t through) {
  if (owner.value() >= owners_.size() || through > pushed_) {
    return InvalidArgumentError("owner {} of {} has added piece {}: {} were pushed", owner.value(),
                                owners_.size(), through, pushed_);
  }
  Owner& entry = owners_[owner.value()];
  entry.added = std::max(entry.added, through);
  entry.sent = std::max(entry.sent, entry.added);
  return OkStatus();
}

Status OutboxState::OnAck(TrainerRank owner, const PieceAck& ack) {
  if (ack.attempt != attempt_) return OkStatus();
  return Acknowledge(owner, ack.through.value());
}

Status OutboxState::OnWanted(TrainerRank owner, const PieceWanted& wanted) {
  if (wanted.attempt != attempt_) return OkStatus();
  if (owner.value() >= owners_.size() || wanted.from.value() == 0 ||
      wanted.from.value() > pushed_ + 1) {
    return InvalidArgumentError("owner {} of {} wants piece {}: {} were pushed", owner.value(),
                                owners_.size(), wanted.from.value(), pushed_);
  }
  // What is queued there is not added yet, so nothing is acknowledged by this.
  Owner& entry = owners_[owner.value()];
  entry.sent = std::max(entry.added, wanted.from.value() - 1);
  entry.finish_sent = false;
  return OkStatus();
}

Status OutboxState::OnFinishAck(TrainerRank owner, const FinishAck& ack) {
  if (ack.attempt != attempt_) return OkStatus();
  if (owner.value() >= owners_.size() || !finish_.has_value()) {
    return InvalidArgumentError("owner {} of {} acknowledges a Finish that was not sent",
                                owner.value(), owners_.size());
  }
  owners_[owner.value()].finish_acknowledged = true;
  return OkStatus();
}

void OutboxState::OnConnect(TrainerRank owner) {
  Owner& entry = owners_.at(owner.value());
  entry.sent = entry.added;
  entry.finish_sent = false;
}

PieceOffer OutboxState::OfferOf(uint64_t number) const {
  const auto slot = static_cast<uint32_t>((number - 1) % units_.size());
  return {.attempt = attempt_,
          .number = PieceNumber(number),
          .unit = units_[slot],
          .slot = OutboxSlot(slot)};
}

std::optional<PieceOffer> OutboxState::Find(TrainerRank owner, const PiecePull& pull) const {
  const uint64_t number = pull.number.value();
  if (pull.attempt != attempt_ || owner.value() >= owners_.size()) return std::nullopt;
  if (number <= owners_[owner.value()].added || number > pushed_) return std::nullopt;
  return OfferOf(number);
}

bool OutboxState::Owes(const Owner& owner) const {
  return owner.added < pushed_ || (finish_.has_value() && !owner.finish_acknowledged);
}

OutboxState::Messages OutboxState::Due(TrainerRank owner, TimePoint now) {
  Owner& entry = owners_.at(owner.value());
  if (!Owes(entry)) return {};
  if (now - entry.sent_at >= limits::kTrainRepeat) OnConnect(owner);
  Messages due;
  for (; entry.sent < pushed_; ++entry.sent) due.offers.push_back(OfferOf(entry.sent + 1));
  const bool owes_finish = finish_.has_value() && !entry.finish_acknowledged;
  if (owes_finish && !std::exchange(entry.finish_sent, true)) due.finish = finish_;
  if (!due.offers.empty() || due.finish.has_value()) entry.sent_at = now;
  return due;
}

std::vector<TrainerRank> OutboxState::WaitsFor() const {
  std::vector<TrainerRank> owners;
  for (uint32_t o = 0; o < owners_.size(); ++o) {
    if (Owes(owners_[o]) || !finish_.has_value()) owners.emplace_back(o);
  }
  return owners;
}

}  // namespace dws
