#include "common/proto_convert/train_convert.h"

#include <optional>

namespace dws {
namespace {

v1::SealedGradient ToProto(const SealedGradient& sealed) {
  v1::SealedGradient message;
  message.set_sum_squares(sealed.sum_squares);
  message.set_weight(sealed.weight);
  message.set_finite(sealed.finite);
  message.set_exact(sealed.exact);
  return message;
}

v1::TrainReport ToProto(const TrainReport& report) {
  v1::TrainReport message;
  message.set_epoch(report.epoch.value());
  message.set_sequence(report.sequence);
  *message.mutable_record() = dws::ToProto(report.record);
  message.set_finished(report.finished);
  message.set_lost(report.lost);
  if (report.lost_rank.has_value()) message.set_lost_rank(report.lost_rank->value());
  return message;
}

v1::TrainOrder ToProto(const TrainDown& down) {
  v1::TrainOrder message;
  message.set_term(down.term.value());
  message.set_epoch(down.epoch.value());
  if (const auto* step = std::get_if<StepDecision>(&down.what)) {
    *message.mutable_step() = dws::ToProto(*step);
  } else if (const auto* abandon = std::get_if<AbandonDecision>(&down.what)) {
    *message.mutable_abandon() = dws::ToProto(*abandon);
  }
  if (down.last_step.has_value()) *message.mutable_last_step() = dws::ToProto(*down.last_step);
  return message;
}

StepDecision FromProto(const v1::StepDecision& message) {
  return {.attempt = dws::FromProto(message.attempt()),
          .norm = message.norm(),
          .weight = message.weight(),
          .finite = message.finite()};
}

AbandonDecision FromProto(const v1::AbandonDecision& message) {
  AbandonDecision abandon{.next = dws::FromProto(message.next()), .reason = message.reason()};
  if (message.has_rank()) abandon.rank = TrainerRank(message.rank());
  return abandon;
}

MemberRecord Unchecked(const v1::MemberRecord& message) {
  MemberRecord record{.term = LeaderTerm(message.term()),
                      .version = WeightVersion(message.version())};
  if (message.has_attempt()) record.attempt = dws::FromProto(message.attempt());
  if (message.has_sealed()) {
    record.sealed = SealedGradient{.sum_squares = message.sealed().sum_squares(),
                                   .weight = message.sealed().weight(),
                                   .finite = message.sealed().finite(),
                                   .exact = message.sealed().exact()};
  }
  if (message.has_step()) record.step = FromProto(message.step());
  if (message.has_last_step()) record.last_step = FromProto(message.last_step());
  return record;
}

Result<TrainBody> FromProto(const v1::TrainReport& message) {
  TrainReport report{.epoch = RankEpoch(message.epoch()),
                     .sequence = message.sequence(),
                     .record = Unchecked(message.record()),
                     .finished = message.finished(),
                     .lost = message.lost()};
  if (message.has_lost_rank()) report.lost_rank = TrainerRank(message.lost_rank());
  DWS_RETURN_IF_ERROR(Validate(report));
  return report;
}

Result<TrainBody> FromProto(const v1::TrainOrder& message) {
  TrainDown down{.term = LeaderTerm(message.term()), .epoch = RankEpoch(message.epoch())};
  if (message.has_step()) down.what = FromProto(message.step());
  if (message.has_abandon()) down.what = FromProto(message.abandon());
  if (message.has_last_step()) down.last_step = FromProto(message.last_step());
  DWS_RETURN_IF_ERROR(Validate(down));
  return down;
}

Result<TrainBody> FromProto(const v1::CombineRequest& message) {
  CombineRequest request{.attempt = dws::FromProto(message.attempt()),
                         .owner = TrainerRank(message.owner()),
                         .units = {}};
  for (const uint32_t unit : message.units()) {
    if (unit >= limits::kTrainUnitsMax || unit < request.units.size()) {
      return InvalidArgumentError("a combiner asks for unit {}: expected ascending ones below {}",
                                  unit, limits::kTrainUnitsMax);
    }
    request.units.resize(unit + 1);
    request.units[unit] = true;
  }
  DWS_RETURN_IF_ERROR(Validate(request));
  return request;
}

PieceOffer FromProto(const v1::PieceOffer& message) {
  return {.attempt = dws::FromProto(message.attempt()),
          .number = PieceNumber(message.number()),
          .unit = UnitIndex(message.unit()),
          .slot = OutboxSlot(message.slot())};
}

// Fills one kind of body.
struct Filler {
  v1::TrainMessage& message;

  void operator()(const TrainReport& report) const { *message.mutable_report() = ToProto(report); }
  void operator()(const TrainDown& down) const { *message.mutable_order() = ToProto(down); }
  void operator()(const PieceOffer& offer) const {
    v1::PieceOffer& to = *message.mutable_offer();
    *to.mutable_attempt() = dws::ToProto(offer.attempt);
    to.set_number(offer.number.value());
    to.set_unit(offer.unit.value());
    to.set_slot(offer.slot.value());
  }
  void operator()(const PieceAck& ack) const {
    *message.mutable_ack()->mutable_attempt() = dws::ToProto(ack.attempt);
    message.mutable_ack()->set_through(ack.through.value());
  }
  void operator()(const PieceWanted& wanted) const {
    *message.mutable_wanted()->mutable_attempt() = dws::ToProto(wanted.attempt);
    message.mutable_wanted()->set_from(wanted.from.value());
  }
  void operator()(const PushFinish& finish) const {
    *message.mutable_finish()->mutable_attempt() = dws::ToProto(finish.attempt);
    message.mutable_finish()->set_count(finish.count);
    message.mutable_finish()->set_weight(finish.weight);
  }
  void operator()(const FinishAck& ack) const {
    *message.mutable_finish_ack()->mutable_attempt() = dws::ToProto(ack.attempt);
  }
  void operator()(const CombineRequest& request) const {
    v1::CombineRequest& to = *message.mutable_combine();
    *to.mutable_attempt() = dws::ToProto(request.attempt);
    to.set_owner(request.owner.value());
    for (uint32_t u = 0; u < request.units.size(); ++u) {
      if (request.units[u]) to.add_units(u);
    }
  }
};

}  // namespace

v1::AttemptId ToProto(const AttemptId& attempt) {
  v1::AttemptId message;
  message.set_minibatch(attempt.minibatch);
  message.set_term(attempt.term.value());
  message.set_attempt(attempt.attempt);
  return message;
}

v1::StepDecision ToProto(const StepDecision& step) {
  v1::StepDecision message;
  *message.mutable_attempt() = ToProto(step.attempt);
  message.set_norm(step.norm);
  message.set_weight(step.weight);
  message.set_finite(step.finite);
  return message;
}

v1::AbandonDecision ToProto(const AbandonDecision& abandon) {
  v1::AbandonDecision message;
  *message.mutable_next() = ToProto(abandon.next);
  message.set_reason(abandon.reason);
  if (abandon.rank.has_value()) message.set_rank(abandon.rank->value());
  return message;
}

v1::MemberRecord ToProto(const MemberRecord& record) {
  v1::MemberRecord message;
  message.set_term(record.term.value());
  message.set_version(record.version.value());
  if (record.attempt.has_value()) *message.mutable_attempt() = ToProto(*record.attempt);
  if (record.sealed.has_value()) *message.mutable_sealed() = ToProto(*record.sealed);
  if (record.step.has_value()) *message.mutable_step() = ToProto(*record.step);
  if (record.last_step.has_value()) *message.mutable_last_step() = ToProto(*record.last_step);
  return message;
}

void FillBody(const TrainBody& body, v1::TrainMessage& message) {
  std::visit(Filler{message}, body);
}

AttemptId FromProto(const v1::AttemptId& attempt) {
  return {.minibatch = attempt.minibatch(),
          .term = LeaderTerm(attempt.term()),
          .attempt = attempt.attempt()};
}

Result<MemberRecord> FromProto(const v1::MemberRecord& message) {
  MemberRecord record = Unchecked(message);
  DWS_RETURN_IF_ERROR(Validate(record));
  return record;
}

Result<TrainBody> BodyOf(const v1::TrainMessage& message) {
  switch (message.body_case()) {
    case v1::TrainMessage::kReport:
      return FromProto(message.report());
    case v1::TrainMessage::kOrder:
      return FromProto(message.order());
    case v1::TrainMessage::kOffer:
      return FromProto(message.offer());
    case v1::TrainMessage::kAck:
      return PieceAck{.attempt = FromProto(message.ack().attempt()),
                      .through = PieceNumber(message.ack().through())};
    case v1::TrainMessage::kWanted:
      return PieceWanted{.attempt = FromProto(message.wanted().attempt()),
                         .from = PieceNumber(message.wanted().from())};
    case v1::TrainMessage::kFinish:
      return PushFinish{.attempt = FromProto(message.finish().attempt()),
                        .count = message.finish().count(),
                        .weight = message.finish().weight()};
    case v1::TrainMessage::kFinishAck:
      return FinishAck{.attempt = FromProto(message.finish_ack().attempt())};
    case v1::TrainMessage::kCombine:
      return FromProto(message.combine());
    case v1::TrainMessage::BODY_NOT_SET:
      break;
  }
  return InvalidArgumentError("a message of training on demand that this version does not know");
}

}  // namespace dws
