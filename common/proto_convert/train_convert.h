// Converts the messages of training on demand between the wire and
// common/train_state/train_messages.h. Like convert.h, it validates what arrives; the states check
// what a message says of their attempt.
#pragma once

#include <variant>

#include "common/base/status.h"
#include "common/train_state/train_messages.h"
#include "proto/train.pb.h"

namespace dws {

// What is said between two senders.
using TrainBody = std::variant<TrainReport, TrainDown, PieceOffer, PieceAck, PieceWanted,
                               PushFinish, FinishAck, CombineRequest>;

v1::AttemptId ToProto(const AttemptId& attempt);
v1::StepDecision ToProto(const StepDecision& step);
v1::AbandonDecision ToProto(const AbandonDecision& abandon);
v1::MemberRecord ToProto(const MemberRecord& record);
// Fills the body. The place of a PieceOffer in the outbox stays unset.
void FillBody(const TrainBody& body, v1::TrainMessage& message);

AttemptId FromProto(const v1::AttemptId& attempt);
// INVALID_ARGUMENT: see Validate.
Result<MemberRecord> FromProto(const v1::MemberRecord& record);
// INVALID_ARGUMENT: see Validate; or no body that this version knows.
Result<TrainBody> BodyOf(const v1::TrainMessage& message);

}  // namespace dws
