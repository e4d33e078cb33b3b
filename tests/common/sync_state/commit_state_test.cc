#include "common/sync_state/commit_state.h"

#include <catch2/catch.hpp>
#include <optional>

namespace dws {
namespace {

using Phase = CommitState::Phase;
using AfterError = CommitState::AfterError;

constexpr Generation kGeneration(7);

// A commit that has reached `phase`.
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

TEST_CASE("a commit goes through intent and pause and write and release in that order",
          "[commit]") {
  CommitState commit = At(Phase::kWritten);
  commit.OnReleased();
  CHECK(commit.phase() == Phase::kReleased);
}

TEST_CASE("a pause of another generation than the staged one writes nothing", "[commit]") {
  for (const std::optional<Generation> attached :
       {std::optional<Generation>(), std::optional(Generation(6)), std::optional(Generation(8))}) {
    CommitState commit = At(Phase::kIntended);
    CHECK(absl::IsUnavailable(commit.OnPaused(attached)));
    CHECK(commit.phase() == Phase::kIntended);
    CHECK(commit.OnError() == AfterError::kAbandonAndResume);
  }
}

TEST_CASE("an error before the intent needs no action", "[commit]") {
  CHECK(At(Phase::kStaged).OnError() == AfterError::kNothing);
}

TEST_CASE("a commit with an error between intent and first write is abandoned", "[commit]") {
  for (const Phase phase : {Phase::kIntended, Phase::kPaused}) {
    CommitState commit = At(phase);
    CHECK(commit.OnError() == AfterError::kAbandonAndResume);
    CHECK(commit.phase() == Phase::kAbandoned);
  }
}

TEST_CASE("an error after the first write leaves the engine paused", "[commit]") {
  for (const Phase phase : {Phase::kWriting, Phase::kWritten}) {
    CHECK(At(phase).OnError() == AfterError::kStayPaused);
  }
}

}  // namespace dws
