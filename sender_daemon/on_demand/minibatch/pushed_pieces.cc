// A push has one piece for each owner, and is offered when all of them are taken: the rank fills
// the slots one after the other.
#include "sender_daemon/on_demand/minibatch/pushed_pieces.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/proto_convert/convert.h"
#include "common/proto_convert/train_convert.h"

namespace dws {
namespace {

AttemptId AttemptOf(const OutboxPiece& piece) {
  return {.minibatch = piece.minibatch, .term = LeaderTerm(piece.term), .attempt = piece.attempt};
}

}  // namespace

PushedPieces::PushedPieces(std::shared_ptr<RankMemory> memory, uint32_t owners)
    : memory_(std::move(memory)), owners_(owners), state_(owners, memory_->pushes()) {}

void PushedPieces::Open(const AttemptId& attempt) {
  for (const auto& [number, push] : pushes_) {
    for (const OutboxPiece& piece : push.pieces) memory_->outbox().Free(piece);
  }
  pushes_.clear();
  forwarded_.clear();
  pushed_ = 0;
  finish_.reset();
  finished_ = false;
  state_.Open(attempt);
}

Status PushedPieces::Take() {
  DWS_ASSIGN_OR_RETURN(const std::vector<OutboxPiece> taken, memory_->outbox().Take());
  for (const OutboxPiece& piece : taken) {
    if (AttemptOf(piece) != state_.attempt()) {
      memory_->outbox().Free(piece);
      continue;
    }
    Push& push = pushes_[piece.number];
    const bool known = Find(TrainerRank(piece.owner), piece.number) != nullptr;
    const bool other = !push.pieces.empty() && push.pieces.front().unit != piece.unit;
    if (piece.number <= pushed_ || known || other) {
      return InvalidArgumentError(
          "outbox slot {}: a piece of push {} for owner {}, of unit {}: push {} is the next, with "
          "one piece for each owner, all of one unit",
          piece.slot, piece.number, piece.owner, piece.unit, pushed_ + 1);
    }
    push.pieces.push_back(piece);
    ++push.taken;
  }
  return Advance();
}

Status PushedPieces::Advance() {
  for (auto next = pushes_.find(pushed_ + 1);
       next != pushes_.end() && next->second.taken == owners_; next = pushes_.find(pushed_ + 1)) {
    DWS_RETURN_IF_ERROR(state_.Push(state_.attempt(), UnitIndex(next->second.pieces.front().unit)));
    ++pushed_;
  }
  if (!finish_.has_value() || finish_->count > pushed_) return OkStatus();
  const PushFinish finish = *std::exchange(finish_, std::nullopt);
  DWS_RETURN_IF_ERROR(state_.Finish(finish.attempt, finish.weight));
  finished_ = true;
  return OkStatus();
}

Status PushedPieces::Finish(const AttemptId& attempt, uint64_t count, double weight) {
  if (attempt != state_.attempt()) return AbortedError("{} is over", ToString(attempt));
  const std::optional<PushFinish>& before = finish_.has_value() ? finish_ : state_.finish();
  if (before.has_value()) {
    if (before->count == count && before->weight == weight) return OkStatus();  // once more
    return FailedPreconditionError("{} is finished already, with {} pushes of weight {}",
                                   ToString(attempt), before->count, before->weight);
  }
  if (count < pushed_) {
    return InvalidArgumentError("{} counts {} pushes, and {} were made", ToString(attempt), count,
                                pushed_);
  }
  finish_ = PushFinish{.attempt = attempt, .count = count, .weight = weight};
  const Status advanced = Advance();
  if (!advanced.ok()) finish_.reset();
  return advanced;
}

bool PushedPieces::TakeFinished() { return std::exchange(finished_, false); }

Status PushedPieces::OnAck(const PieceRoute& route, const PieceAck& ack) {
  DWS_ASSIGN_OR_RETURN(const std::vector<OutboxState::Item> acknowledged, state_.OnAck(route, ack));
  for (const OutboxState::Item& item : acknowledged) {
    const auto push = pushes_.find(item.push);
    if (push == pushes_.end()) continue;  // the sum of a host
    std::vector<OutboxPiece>& pieces = push->second.pieces;
    const auto found = std::ranges::find(pieces, route.owner.value(), &OutboxPiece::owner);
    DWS_CHECK(found != pieces.end());
    memory_->outbox().Free(*found);
    pieces.erase(found);
    if (pieces.empty()) pushes_.erase(push);
  }
  return OkStatus();
}

void PushedPieces::Forward(TrainerRank owner, std::vector<HostSum> sums) {
  std::vector<UnitIndex> units;
  for (const HostSum& sum : sums) units.push_back(sum.unit);
  state_.Forward(owner, units);
  forwarded_[owner] = std::move(sums);
}

const HostSum& PushedPieces::SumOf(TrainerRank owner, UnitIndex unit) const {
  const std::vector<HostSum>& sums = forwarded_.at(owner);
  const auto found = std::ranges::find(sums, unit, &HostSum::unit);
  DWS_CHECK(found != sums.end());
  return *found;
}

const OutboxPiece* PushedPieces::Find(TrainerRank owner, uint64_t number) const {
  const auto push = pushes_.find(number);
  if (push == pushes_.end()) return nullptr;
  const auto& pieces = push->second.pieces;
  const auto found = std::ranges::find(pieces, owner.value(), &OutboxPiece::owner);
  return found == pieces.end() ? nullptr : &*found;
}

std::vector<v1::TrainMessage> PushedPieces::Due(const PieceRoute& route, TimePoint now) {
  std::vector<v1::TrainMessage> messages;
  const OutboxState::Messages due = state_.Due(route, now);
  for (const PieceOffer& offer : due.offers) {
    const auto item =
        state_.Find(route, PiecePull{.attempt = offer.attempt, .number = offer.number});
    DWS_CHECK(item.has_value());
    FillBody(offer, messages.emplace_back());
    v1::PieceOffer& message = *messages.back().mutable_offer();
    message.set_outbox(memory_->outbox_id());
    if (item->push == 0) {
      const HostSum& sum = SumOf(route.owner, item->unit);
      message.set_size_bytes(sum.piece.bytes.size());
      message.set_dtype(static_cast<v1::DType>(sum.piece.dtype));
      message.set_rounded(sum.rounded);
    } else {
      const OutboxPiece* const piece = Find(route.owner, item->push);
      DWS_CHECK(piece != nullptr);
      message.set_offset_bytes(piece->offset_bytes);
      message.set_size_bytes(piece->size_bytes);
      message.set_dtype(static_cast<v1::DType>(piece->dtype));
    }
  }
  if (due.finish.has_value()) FillBody(*due.finish, messages.emplace_back());
  return messages;
}

Result<LentPiece> PushedPieces::Lend(const PieceRoute& route, const PiecePull& pull) const {
  const std::optional<OutboxState::Item> item = state_.Find(route, pull);
  if (!item.has_value()) {
    return AbortedError("piece {} of {} is not there for owner {}: it was added, or given up",
                        pull.number.value(), ToString(pull.attempt), route.owner.value());
  }
  if (item->push == 0) return SumOf(route.owner, item->unit).piece;
  const OutboxPiece* const piece = Find(route.owner, item->push);
  DWS_CHECK(piece != nullptr);
  return LentPiece{
      .dtype = piece->dtype, .bytes = memory_->outbox().Bytes(*piece), .keeper = memory_};
}

}  // namespace dws
