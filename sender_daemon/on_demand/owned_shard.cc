#include "sender_daemon/on_demand/owned_shard.h"

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/proto_convert/convert.h"

namespace dws {

OwnedShard::OwnedShard(StreamId stream, uint32_t ranks, uint32_t units, Outputs outputs)
    : stream_(stream),
      ranks_(ranks),
      outputs_(std::move(outputs)),
      state_(ranks, units, limits::kOutboxPushesMax),
      places_(ranks) {}

void OwnedShard::Open(const AttemptId& attempt) {
  outputs_.let_go();  // before any add of this attempt
  waiting_.clear();
  for (auto& places : places_) places.clear();
  for (const TrainerRank early : state_.Open(attempt)) outputs_.send(early, state_.wanted(early));
}

Status OwnedShard::OnOffer(TrainerRank from, const PieceOffer& offer, const v1::PieceOffer& place,
                           const Accumulators& sums) {
  DWS_ASSIGN_OR_RETURN(const DType dtype, FromProto(place.dtype()));
  Status fits = sums.CheckPiece(offer.unit.value(), dtype, place.size_bytes());
  const Result<AccumulateState::Answer> answer =
      fits.ok() ? state_.OnOffer(from, offer) : Result<AccumulateState::Answer>(fits);
  if (!answer.ok()) {
    ++counts_.refused;
    return answer.status();
  }
  switch (*answer) {
    case AccumulateState::Answer::kQueued:
      places_[from.value()][offer.number] = {.stream = stream_,
                                             .from = from,
                                             .offer = offer,
                                             .outbox = place.outbox(),
                                             .offset_bytes = place.offset_bytes(),
                                             .size_bytes = place.size_bytes(),
                                             .dtype = dtype};
      break;
    case AccumulateState::Answer::kAcknowledge:
      ++counts_.repeated;
      outputs_.send(from, state_.acknowledged(from));
      break;
    case AccumulateState::Answer::kAskAgain:
      outputs_.send(from, state_.wanted(from));
      break;
  }
  return OkStatus();
}

Status OwnedShard::OnFinish(TrainerRank from, const PushFinish& finish) {
  DWS_RETURN_IF_ERROR(state_.OnFinish(from, finish));
  outputs_.send(from, FinishAck{.attempt = finish.attempt});
  return OkStatus();
}

void OwnedShard::OnConnect(TrainerRank from) {
  if (from.value() >= ranks_) return;
  state_.OnConnect(from);
  if (state_.attempt().minibatch > 0) outputs_.send(from, state_.wanted(from));
}

void OwnedShard::OnPulled(TrainerRank from, const PiecePull& pull, Result<LentPiece> bytes) {
  if (bytes.ok()) return Begin({.from = from, .pull = pull, .bytes = *std::move(bytes)});
  LogInfo("piece_not_pulled", {{"trainer_rank", from.value()},
                               {"attempt", ToString(pull.attempt)},
                               {"piece", pull.number.value()},
                               {"reason", Message(bytes.status())}});
  failed_.emplace_back(from, pull);
}

void OwnedShard::Tick() {
  for (const auto& [from, pull] : std::exchange(failed_, {})) state_.OnPullFailed(from, pull);
}

void OwnedShard::Begin(Waiting piece) {
  switch (state_.Begin(piece.from, piece.pull)) {
    case AccumulateState::Add::kStale:
      return;
    case AccumulateState::Add::kBusy:
      return waiting_.push_back(std::move(piece));
    case AccumulateState::Add::kStore:
    case AccumulateState::Add::kAdd:
      return outputs_.add(piece.from, piece.pull, state_.adding(piece.from),
                          std::move(piece.bytes));
  }
}

void OwnedShard::OnAdded(TrainerRank from, const PiecePull& piece) {
  if (state_.Added(from, piece)) {
    ++counts_.added;
    places_[from.value()].erase(piece.number);
    outputs_.send(from, state_.acknowledged(from));
  }
  for (Waiting& waiting : std::exchange(waiting_, {})) Begin(std::move(waiting));
}

void OwnedShard::Settle() {
  for (uint32_t r = 0; r < ranks_; ++r) {
    const TrainerRank from(r);
    const std::optional<PieceOffer> offer = state_.NextPull(from);
    if (!offer.has_value()) continue;
    const auto place = places_[r].find(offer->number);
    DWS_CHECK(place != places_[r].end());
    outputs_.pull(place->second);
  }
  if (const std::optional<double> weight = state_.TakeSealed()) {
    outputs_.seal(state_.attempt(), *weight);
  }
}

}  // namespace dws
