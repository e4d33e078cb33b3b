#include "common/train_state/train_messages.h"

#include <catch2/catch.hpp>
#include <limits>

#include "tests/common/train_state/train_samples.h"

namespace dws {
namespace {

TrainReport ReportAt(const AttemptId& attempt) {
  TrainReport report;
  report.record.version = WeightVersion(1);
  report.record.attempt = attempt;
  return report;
}

}  // namespace

TEST_CASE("a message of another job or incarnation or world is refused by name", "[train]") {
  const TrainingJob mine{.job_id = "run7", .stream = {.incarnation = 5}, .world_size = 4};
  CHECK(CheckJob(mine, mine, TrainerRank(3)).ok());
  CHECK(absl::IsInvalidArgument(CheckJob(mine, mine, TrainerRank(4))));
  TrainingJob other = mine;
  other.job_id = "run8";
  CHECK(Message(CheckJob(mine, other, TrainerRank(0))) ==
        "a message of job 'run8', this sender trains job 'run7'");
  other = mine;
  other.stream.incarnation = 4;
  CHECK(absl::IsFailedPrecondition(CheckJob(mine, other, TrainerRank(0))));
  other = mine;
  other.world_size = 8;
  CHECK(Message(CheckJob(mine, other, TrainerRank(0))) ==
        "a message of a job of 8 ranks, this one has 4");
}

TEST_CASE("numbers that no gradient has are refused", "[train]") {
  for (const double wrong :
       {-1.0, std::numeric_limits<double>::infinity(), std::numeric_limits<double>::quiet_NaN()}) {
    StepDecision step = StepOf(At(1, 1));
    step.norm = wrong;
    CHECK(absl::IsInvalidArgument(Validate(Down(step))));
    step = StepOf(At(1, 1));
    step.weight = wrong;
    CHECK(absl::IsInvalidArgument(Validate(Down(step))));
    TrainReport report = ReportAt(At(1, 1));
    report.record.sealed = SealedGradient{.sum_squares = wrong};
    CHECK(absl::IsInvalidArgument(Validate(report)));
  }
  StepDecision infinite = StepOf(At(1, 1), 3);
  infinite.finite = false;
  CHECK(absl::IsInvalidArgument(Validate(Down(infinite))));  // its norm is 0
  infinite.norm = 0;
  CHECK(Validate(Down(infinite)).ok());
}

TEST_CASE("attempts count from 1 in a minibatch and a term", "[train]") {
  for (const AttemptId& wrong : {At(0, 1), At(1, 0), At(1, 1, 0)}) {
    CHECK(absl::IsInvalidArgument(Validate(Down(Open(wrong)))));
    CHECK(absl::IsInvalidArgument(Validate(Down(StepOf(wrong)))));
    CHECK(absl::IsInvalidArgument(Validate(ReportAt(wrong))));
  }
  CHECK(At(1, 9, 1) < At(1, 1, 2));  // a later leader's attempts come later
  CHECK(At(1, 9, 9) < At(2, 1, 1));
}

TEST_CASE("a report that contradicts itself is refused", "[train]") {
  TrainReport report = ReportAt(At(1, 1));
  CHECK(Validate(report).ok());
  report.record.step = StepOf(At(1, 1));
  CHECK(absl::IsInvalidArgument(Validate(report)));  // a step without the gradient
  report.record.sealed = SealedGradient();
  CHECK(Validate(report).ok());
  report.record.step = StepOf(At(1, 2));
  CHECK(absl::IsInvalidArgument(Validate(report)));
  report.record.step.reset();
  report.record.last_step = StepOf(At(1, 1));
  CHECK(absl::IsInvalidArgument(Validate(report)));  // of the same minibatch
  report = ReportAt(At(2, 1));
  CHECK(absl::IsInvalidArgument(Validate(report)));  // the step before it is not known
  report.record.last_step = StepOf(At(1, 1));
  CHECK(Validate(report).ok());
  report.record.attempt.reset();
  CHECK(absl::IsInvalidArgument(Validate(report)));
  report.record = {};
  CHECK(absl::IsInvalidArgument(Validate(report)));  // no version
}

TEST_CASE("a reason has a maximum", "[train]") {
  TrainReport report = ReportAt(At(1, 1));
  report.lost = std::string(limits::kAbandonReasonBytesMax + 1, 'x');
  CHECK(absl::IsInvalidArgument(Validate(report)));
  AbandonDecision abandon = Open(At(1, 1));
  abandon.reason = report.lost;
  CHECK(absl::IsInvalidArgument(Validate(Down(abandon))));
}

TEST_CASE("an attempt of a later minibatch comes with the step before it", "[train]") {
  TrainDown down = Down(Open(At(2, 2)));
  CHECK(absl::IsInvalidArgument(Validate(down)));
  down.last_step = StepOf(At(1, 1));
  CHECK(Validate(down).ok());
  CHECK(Validate(Down(TrainAsk())).ok());
}

TEST_CASE("a combiner's request is of an attempt, and of as many units as there can be",
          "[train]") {
  CombineRequest request{.attempt = At(1, 1), .owner = TrainerRank(1), .units = {true}};
  CHECK(Validate(request).ok());
  request.units.resize(limits::kTrainUnitsMax + 1);
  CHECK(absl::IsInvalidArgument(Validate(request)));
  CHECK(absl::IsInvalidArgument(
      Validate(CombineRequest{.attempt = At(1, 0), .owner = TrainerRank(1), .units = {}})));
}

}  // namespace dws
