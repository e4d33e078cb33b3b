// Attempts, steps and messages that the tests of on-demand training's states share.
#pragma once

#include "common/train_state/train_messages.h"

namespace dws {

inline AttemptId At(uint64_t minibatch, uint32_t attempt, uint64_t term = 1) {
  return {.minibatch = minibatch, .term = LeaderTerm(term), .attempt = attempt};
}

inline StepDecision StepOf(const AttemptId& attempt, double norm = 5) {
  return {.attempt = attempt, .norm = norm, .weight = 8, .finite = true};
}

inline AbandonDecision Open(const AttemptId& next) {
  return {.next = next, .reason = "a test", .rank = std::nullopt};
}

inline TrainDown Down(decltype(TrainDown::what) what, uint64_t term = 1, uint64_t epoch = 1) {
  return {.term = LeaderTerm(term),
          .epoch = RankEpoch(epoch),
          .what = std::move(what),
          .last_step = std::nullopt};
}

inline PieceOffer OfferOf(uint64_t number, uint32_t unit = 0, AttemptId attempt = At(1, 1)) {
  return {.attempt = attempt,
          .number = PieceNumber(number),
          .unit = UnitIndex(unit),
          .slot = OutboxSlot(0)};
}

inline PiecePull PullOf(uint64_t number, AttemptId attempt = At(1, 1)) {
  return {.attempt = attempt, .number = PieceNumber(number)};
}

}  // namespace dws
