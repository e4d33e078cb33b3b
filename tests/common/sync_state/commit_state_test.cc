#include "common/sync_state/commit_state.h"

#include <catch2/catch.hpp>
#include <optional>

namespace dws {
namespace {

using Phase = CommitState::Phase;
using AfterError = CommitState::AfterError;

constexpr Generation kGeneration(7);

// A commit that has got to `phase`.
CommitState At(Phase phase) {
  CommitState commit(kGeneration);
  if (phase >= Phase::kIntended) commit.OnIntentRecorded();
  if (phase >= Phase::kPaused) REQUIRE(commit.OnPaused(kGeneration).ok());
  if (phase >= Phase::kWriting) commit.OnWriteBegin();
  if (phase >= Phase::kWritten) commit.OnWritten();
  REQUIRE(commit.phase() == phase);
  return commit;
}

}  // namespace

TEST_CASE("a commit is intended, paused, written and released in that order", "[commit]") {
  CommitState commit = At(Phase::kWritten);
  commit.OnReleased();
  CHECK(commit.phase() == Phase::kReleased);
}

TEST_CASE("a pause by another generation than was staged for writes nothing", "[commit]") {
  for (const std::optional<Generation> attached :
       {std::optional<Generation>(), std::optional(Generation(6)), std::optional(Generation(8))}) {
    CommitState commit = At(Phase::kIntended);
    CHECK(absl::IsUnavailable(commit.OnPaused(attached)));
    CHECK(commit.phase() == Phase::kIntended);
    CHECK(commit.OnError() == AfterError::kAbandonAndResume);
  }
}

TEST_CASE("an error before the intent costs nothing", "[commit]") {
  CHECK(At(Phase::kStaged).OnError() == AfterError::kNothing);
}

TEST_CASE("an error between intent and first byte is abandoned: memory is what it was",
          "[commit]") {
  for (const Phase phase : {Phase::kIntended, Phase::kPaused}) {
    CommitState commit = At(phase);
    CHECK(commit.OnError() == AfterError::kAbandonAndResume);
    CHECK(commit.phase() == Phase::kAbandoned);
  }
}

TEST_CASE("an error after the first byte leaves the engine paused", "[commit]") {
  for (const Phase phase : {Phase::kWriting, Phase::kWritten}) {
    CHECK(At(phase).OnError() == AfterError::kStayPaused);
  }
}

}  // namespace dws
