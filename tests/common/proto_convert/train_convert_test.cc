#include "common/proto_convert/train_convert.h"

#include <catch2/catch.hpp>
#include <variant>

namespace dws {
namespace {

constexpr AttemptId kAttempt{.minibatch = 3, .term = LeaderTerm(4), .attempt = 2};

}  // namespace

TEST_CASE("a combiner's request converts to protobuf and back", "[train]") {
  const CombineRequest request{
      .attempt = kAttempt, .owner = TrainerRank(5), .units = {true, false, false, true}};
  v1::TrainMessage message;
  FillBody(request, message);
  const Result<TrainBody> body = BodyOf(message);
  REQUIRE(body.ok());
  const auto* const found = std::get_if<CombineRequest>(&*body);
  REQUIRE(found != nullptr);
  CHECK(found->attempt == kAttempt);
  CHECK(found->owner == TrainerRank(5));
  CHECK(found->units == request.units);
}

TEST_CASE("units that a combiner cannot ask for are refused before they take memory", "[train]") {
  v1::TrainMessage message;
  FillBody(CombineRequest{.attempt = kAttempt, .owner = TrainerRank(5), .units = {true, true}},
           message);
  for (const uint32_t unit : {limits::kTrainUnitsMax, UINT32_MAX, 1U, 0U}) {
    message.mutable_combine()->clear_units();
    message.mutable_combine()->add_units(1);
    message.mutable_combine()->add_units(unit);
    INFO(unit);
    CHECK(absl::IsInvalidArgument(BodyOf(message).status()));
  }
  message.mutable_combine()->clear_units();
  CHECK(BodyOf(message).ok());
  message.mutable_combine()->mutable_attempt()->set_attempt(0);
  CHECK(absl::IsInvalidArgument(BodyOf(message).status()));
}

}  // namespace dws
