// A pull is believed only if what came is still what this owner would pull: its rank may have
// connected again, and offered something else, meanwhile.
#include "sender_daemon/on_demand/minibatch/owned_shard.h"

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/proto_convert/convert.h"

namespace dws {
namespace {

PiecePull PullOf(const PieceToPull& pull) {
  return {.attempt = pull.offer.attempt, .number = pull.offer.number};
}

}  // namespace

OwnedShard::OwnedShard(Options options, Send send, Work work)
    : options_(options),
      send_(std::move(send)),
      work_(std::move(work)),
      state_(options.ranks, options.units, limits::kOutboxPushesMax,
             options.combined_for.has_value() ? AccumulateState::Counts::kAsked
                                              : AccumulateState::Counts::kAll),
      places_(options.ranks) {}

void OwnedShard::Open(const AttemptId& attempt) {
  work_.let_go();  // before any add of this attempt
  waiting_.clear();
  rounded_ = false;
  for (auto& places : places_) places.clear();
  for (const TrainerRank early : state_.Open(attempt)) send_(early, state_.wanted(early));
}

Status OwnedShard::OnOffer(TrainerRank from, const PieceOffer& offer, const v1::PieceOffer& place,
                           const Accumulators& sums) {
  DWS_ASSIGN_OR_RETURN(const DType dtype, FromProto(place.dtype()));
  const PieceToPull piece{.stream = options_.stream,
                          .from = from,
                          .combined_for = options_.combined_for,
                          .offer = offer,
                          .outbox = place.outbox(),
                          .offset_bytes = place.offset_bytes(),
                          .size_bytes = place.size_bytes(),
                          .dtype = dtype,
                          .rounded = place.rounded()};
  const Result<AccumulateState::Answer> answer = Admit(piece, sums);
  if (!answer.ok()) {
    ++counts_.refused;
    return answer.status();
  }
  switch (*answer) {
    case AccumulateState::Answer::kQueued:
      places_[from.value()].emplace(offer.number, piece);
      break;
    case AccumulateState::Answer::kAcknowledge:
      ++counts_.repeated;
      send_(from, state_.acknowledged(from));
      break;
    case AccumulateState::Answer::kAskAgain:
      send_(from, state_.wanted(from));
      break;
  }
  return OkStatus();
}

Result<AccumulateState::Answer> OwnedShard::Admit(const PieceToPull& piece,
                                                  const Accumulators& sums) {
  const PieceOffer& offer = piece.offer;
  if (offer.attempt == state_.attempt() && piece.from.value() < options_.ranks) {
    DWS_RETURN_IF_ERROR(sums.CheckPiece(offer.unit.value(), piece.dtype, piece.size_bytes));
    const auto known = places_[piece.from.value()].find(offer.number);
    if (known != places_[piece.from.value()].end() && known->second != piece) {
      return InvalidArgumentError("rank {} offers its piece {} again as another one",
                                  piece.from.value(), offer.number.value());
    }
  }
  return state_.OnOffer(piece.from, offer);
}

Status OwnedShard::OnFinish(TrainerRank from, const PushFinish& finish) {
  DWS_RETURN_IF_ERROR(state_.OnFinish(from, finish));
  send_(from, FinishAck{.attempt = finish.attempt});
  return OkStatus();
}

void OwnedShard::OnConnect(TrainerRank from) {
  if (from.value() >= options_.ranks) return;
  state_.OnConnect(from);
  places_[from.value()].clear();  // it offers what is not added again
  if (state_.attempt().minibatch > 0) send_(from, state_.wanted(from));
}

bool OwnedShard::IsNext(const PieceToPull& pull) const {
  const auto& places = places_[pull.from.value()];
  const auto place = places.find(pull.offer.number);
  return place != places.end() && place->second == pull;
}

void OwnedShard::OnPulled(const PieceToPull& pull, Result<LentPiece> bytes) {
  if (bytes.ok() && IsNext(pull)) return Begin({.pull = pull, .bytes = *std::move(bytes)});
  if (!bytes.ok()) {
    LogInfo("piece_not_pulled", {{"trainer_rank", pull.from.value()},
                                 {"attempt", ToString(pull.offer.attempt)},
                                 {"piece", pull.offer.number.value()},
                                 {"reason", Message(bytes.status())}});
  }
  failed_.emplace_back(pull.from, PullOf(pull));
}

void OwnedShard::Tick() {
  for (const auto& [from, pull] : std::exchange(failed_, {})) state_.OnPullFailed(from, pull);
}

void OwnedShard::Begin(Waiting piece) {
  if (!IsNext(piece.pull)) return;
  const TrainerRank from = piece.pull.from;
  switch (state_.Begin(from, PullOf(piece.pull))) {
    case AccumulateState::Add::kStale:
      return;
    case AccumulateState::Add::kBusy:
      return waiting_.push_back(std::move(piece));
    case AccumulateState::Add::kStore:
    case AccumulateState::Add::kAdd:
      DWS_CHECK(state_.adding(from) == piece.pull.offer.unit);
      rounded_ = rounded_ || piece.pull.rounded;
      return work_.add(from, PullOf(piece.pull), state_.adding(from), std::move(piece.bytes));
  }
}

void OwnedShard::OnAdded(TrainerRank from, const PiecePull& piece) {
  if (state_.Added(from, piece)) {
    ++counts_.added;
    places_[from.value()].erase(piece.number);
    DWS_KILLPOINT("sender.train.before_ack");
    send_(from, state_.acknowledged(from));
  }
  for (Waiting& waiting : std::exchange(waiting_, {})) Begin(std::move(waiting));
}

void OwnedShard::Settle(bool rank_present) {
  if (!rank_present) return;
  for (uint32_t r = 0; r < options_.ranks; ++r) {
    const TrainerRank from(r);
    const std::optional<PieceOffer> offer = state_.NextPull(from);
    if (!offer.has_value()) continue;
    const auto place = places_[r].find(offer->number);
    DWS_CHECK(place != places_[r].end());
    if (!work_.pull(place->second)) failed_.emplace_back(from, PullOf(place->second));
  }
  if (const std::optional<double> weight = state_.TakeSealed()) {
    work_.seal(state_.attempt(), *weight);
  }
}

}  // namespace dws
