// Captures of full versions, readers of the versions that they overwrite, and the state after one
// is given up.
#include <algorithm>
#include <catch2/catch.hpp>
#include <ranges>

#include "sender_daemon/capture/capture.h"
#include "sender_daemon/capture/snapshot_check.h"
#include "sender_daemon/publish/full_reader.h"
#include "tests/sender_daemon/object_apply.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 100};
constexpr std::chrono::seconds kTimeout{10};

// Enough blocks that a reader needs several reads, and that few of them are in a sample.
RankLayout LargeLayout() {
  return MakeLayout(
      {{.tensor = {.name = "a", .dtype = DType::kU8, .shape = {600, 65'536}, .cuts = {{0, {100}}}},
        .cells = {{0, 2}}},
       {.tensor = {.name = "b", .dtype = DType::kF32, .shape = {70'001}}}});
}

uint64_t Differing(const RankLayout& layout, const Weights& before, const Weights& after) {
  uint64_t count = 0;
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const size_t width = ElementBytes(layout.slice(RankSlice(s)).dtype);
    for (size_t at = 0; at < before[s].size(); at += width) {
      count +=
          std::equal(before[s].begin() + at, before[s].begin() + at + width, after[s].begin() + at)
              ? 0
              : 1;
    }
  }
  return count;
}

// A stream of versions and the weights of each.
struct Sender {
  explicit Sender(const RankLayout& layout) : state(MakeState(layout, kNoLimits)) {}

  RetainedVersionPtr Publish(const Weights& weights, FullCause full = FullCause::kNone) {
    Capture capture(*state->snapshot, pool, WeightVersion(++version), DeltaProfile::kFast, full);
    WeightsSource source(state->layout(), weights);
    DWS_CHECK(capture.Blocks(AllBlocks(state->layout()), source).ok());
    auto captured = capture.Finish();
    DWS_CHECK(captured.ok());
    RetainedVersionPtr sealed = Seal({.state = state, .captured = *std::move(captured)});
    state->log->Append(sealed);
    return sealed;
  }
  // The first `blocks` blocks of a full version that is then given up.
  void GiveUp(const Weights& weights, size_t blocks) {
    Capture capture(*state->snapshot, pool, WeightVersion(++version), DeltaProfile::kFast,
                    FullCause::kAsked);
    WeightsSource source(state->layout(), weights);
    auto refs = AllBlocks(state->layout());
    refs.resize(blocks);
    DWS_CHECK(capture.Blocks(refs, source).ok());
  }
  std::unique_ptr<FullReader> Reader(uint64_t of) const {
    return std::make_unique<FullReader>(state->snapshot, state->log, WeightVersion(of),
                                        WholeSlices(state->layout()));
  }

  // Returns whether a full version that the sender chooses itself would have a sample now.
  bool SamplesNext() const {
    const auto blocks = std::views::iota(uint64_t{0}, state->layout().block_count());
    return std::ranges::any_of(blocks, [&](uint64_t number) {
      return state->snapshot->history().full_watch.InSample(number);
    });
  }

  ThreadPool pool{1};
  const RankStatePtr state;
  uint64_t version = 0;
};

// Reads on: one step, or all that is left. ABORTED as the reader.
Status ReadSome(const Sender& sender, FullReader& reader, Weights& into) {
  DWS_ASSIGN_OR_RETURN(const auto frames, reader.Next(kTimeout));
  for (const FullFrame& frame : frames) {
    ApplyFrame(sender.state->layout(), frame.slice, frame.bytes, frame.entry, into);
  }
  return frames.empty() ? CancelledError("at the end") : OkStatus();
}
Status ReadRest(const Sender& sender, FullReader& reader, Weights& into) {
  Status status;
  while (status.ok()) status = ReadSome(sender, reader, into);
  return absl::IsCancelled(status) ? OkStatus() : status;
}

TEST_CASE("a full version is what the trainer has, without a delta", "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(GENERATE(SmallLayout(), LargeLayout()));
  const RankLayout& layout = sender.state->layout();
  Weights weights = RandomWeights(layout, random);
  CHECK(sender.Publish(weights)->full == FullCause::kFirst);
  int samples = 0;
  for (const FullCause cause : {FullCause::kAsked, FullCause::kDense}) {
    for (const double density : {0.0, 0.001, 0.1, 0.2, 0.001}) {
      samples += cause == FullCause::kDense && sender.SamplesNext() ? 1 : 0;
      const Weights before = weights;
      Perturb(weights, density, random);
      const RetainedVersionPtr full = sender.Publish(weights, cause);
      CHECK_FALSE(full->base.has_value());
      CHECK(full->object.empty());
      CHECK(full->full == cause);
      // What was asked for is only copied.
      const bool compared = cause == FullCause::kDense;
      CHECK(full->nnz == (compared ? Differing(layout, before, weights) : 0));
      CHECK(full->after == DigestsOf(layout, weights));
      CHECK(full->manifest.state_token == StateToken(full->after));
      CHECK(SnapshotWeights(*sender.state) == weights);
    }
  }
  CHECK(samples == (layout.size_bytes() < FullWatch::kWeightsBytesMin ? 0 : 1));
  // Deltas follow.
  Weights replica = weights;
  Perturb(weights, 0.01, random);
  const RetainedVersionPtr delta = sender.Publish(weights);
  REQUIRE(delta->base == WeightVersion(sender.version - 1));
  ApplyObject(layout, delta->object, replica);
  CHECK(replica == weights);
}

TEST_CASE("no delta and no squash crosses a full version", "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(SmallLayout());
  Weights weights = RandomWeights(sender.state->layout(), random);
  for (int version = 1; version <= 6; ++version) {
    sender.Publish(weights, version == 4 ? FullCause::kAsked : FullCause::kNone);
    Perturb(weights, 0.01, random);
  }
  DeltaLog& log = *sender.state->log;
  for (uint64_t base = 1; base < 6; ++base) {
    for (uint64_t target = base + 1; target <= 6; ++target) {
      const bool crosses = base < 4 && target >= 4;
      const auto object = log.Object(WeightVersion(base), WeightVersion(target));
      CHECK(object.ok() != crosses);
      CHECK(log.HasFull(WeightVersion(base), WeightVersion(target)) == crosses);
      if (!crosses) continue;
      CHECK(absl::IsAborted(object.status()));
      CHECK(std::string(Message(object.status())).find("version 4, it has full tensors only") !=
            std::string::npos);
    }
  }
}

TEST_CASE("a full version that was asked for must hand over every tensor", "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(SmallLayout());
  const RankLayout& layout = sender.state->layout();
  Weights weights = RandomWeights(layout, random);
  sender.Publish(weights);
  Perturb(weights, 0.1, random);
  Capture capture(*sender.state->snapshot, sender.pool, WeightVersion(2), DeltaProfile::kFast,
                  FullCause::kAsked);
  WeightsSource source(layout, weights);
  const auto all = AllBlocks(layout);
  REQUIRE(capture.Blocks(std::span(all).first(all.size() - 1), source).ok());
  const auto incomplete = capture.Finish();
  CHECK(incomplete.status().code() == absl::StatusCode::kFailedPrecondition);
  CHECK(std::string(Message(incomplete.status())).find("full one and lacks tensor 'b'") !=
        std::string::npos);
  REQUIRE(capture.Blocks(std::span(all).last(1), source).ok());
  CHECK(capture.Finish().ok());
  CHECK(SnapshotWeights(*sender.state) == weights);
}

TEST_CASE("a full version of the sender's own may lack blocks, which are unchanged",
          "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(LargeLayout());
  const RankLayout& layout = sender.state->layout();
  Weights weights = RandomWeights(layout, random);
  sender.Publish(weights);
  const bool sample = GENERATE(false, true);
  for (int i = 0; sample && i < 3; ++i) sender.Publish(weights, FullCause::kDense);
  CHECK(sender.SamplesNext() == sample);
  const Weights old = weights;
  Perturb(weights, 0.1, random);
  auto refs = AllBlocks(layout);
  const std::vector<BlockRef> put(refs.begin() + 50, refs.begin() + 150);  // parts of two slices
  Capture capture(*sender.state->snapshot, sender.pool, WeightVersion(++sender.version),
                  DeltaProfile::kFast, FullCause::kDense);
  WeightsSource source(layout, weights);
  REQUIRE(capture.Blocks(put, source).ok());
  const auto captured = capture.Finish();
  REQUIRE(captured.ok());
  const Weights now = SnapshotWeights(*sender.state);
  CHECK(captured->after == DigestsOf(layout, now));
  CHECK(captured->nnz == Differing(layout, old, now));
  CHECK(now[2] == old[2]);
  CHECK(sender.state->snapshot->history().full_watch.Cause(false) == FullCause::kNone);
}

TEST_CASE("versions whose deltas are as large as the weights become full, and deltas again",
          "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(LargeLayout());
  const RankLayout& layout = sender.state->layout();
  const auto cause = [&] { return sender.state->snapshot->history().full_watch.Cause(false); };
  std::vector<bool> full;
  const auto publish = [&](const Weights& weights) {
    full.push_back(!sender.Publish(weights, cause())->base.has_value());
  };
  Weights weights;
  for (int i = 0; i < 5; ++i) {  // 4 and 5 are full: 2 and 3 were dense
    weights = RandomWeights(layout, random);
    publish(weights);
  }
  for (int i = 0; i < 2; ++i) {  // the first is full still
    Perturb(weights, 0.001, random);
    publish(weights);
  }
  CHECK(full == std::vector<bool>{true, false, false, true, true, true, false});
}

TEST_CASE("deltas come back when a sample shows that as many changes are smaller",
          "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(LargeLayout());
  const RankLayout& layout = sender.state->layout();
  Weights weights;
  const auto publish = [&] {
    return !sender.Publish(weights, sender.state->snapshot->history().full_watch.Cause(false))
                ->base.has_value();
  };
  std::vector<bool> full;
  for (int i = 0; i < 5; ++i) {
    weights = RandomWeights(layout, random);
    full.push_back(publish());
  }
  for (int i = 0; i < 3; ++i) {  // every element by one step; the second of these has the sample
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      const size_t bytes = ElementBytes(layout.slice(RankSlice(s)).dtype);
      for (size_t at = 0; at < weights[s].size(); at += bytes) weights[s][at] ^= std::byte{1};
    }
    full.push_back(publish());
    CHECK(SnapshotWeights(*sender.state) == weights);
  }
  CHECK(full == std::vector<bool>{true, false, false, true, true, true, true, false});
}

TEST_CASE("versions that were asked to be full teach nothing", "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(LargeLayout());
  const RankLayout& layout = sender.state->layout();
  const auto cause = [&] { return sender.state->snapshot->history().full_watch.Cause(false); };
  Weights weights = RandomWeights(layout, random);
  sender.Publish(weights);
  const auto publish_dense = [&](FullCause as) {
    weights = RandomWeights(layout, random);
    sender.Publish(weights, as);
  };
  publish_dense(FullCause::kNone);
  for (int i = 0; i < 3; ++i) {
    publish_dense(FullCause::kAsked);
    CHECK(cause() == FullCause::kNone);
  }
  publish_dense(FullCause::kNone);
  CHECK(cause() == FullCause::kDense);  // the second that was not asked for
  Perturb(weights, 0.001, random);
  sender.Publish(weights, FullCause::kAsked);
  CHECK(cause() == FullCause::kDense);
  Perturb(weights, 0.001, random);
  sender.Publish(weights, FullCause::kDense);
  CHECK(cause() == FullCause::kNone);
}

TEST_CASE("a full version heals a slice whose digest was wrong", "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(SmallLayout());
  Weights weights = RandomWeights(sender.state->layout(), random);
  sender.Publish(weights);
  Snapshot& snapshot = *sender.state->snapshot;
  snapshot.SliceBytes(RankSlice(1))[5] ^= std::byte{1};
  REQUIRE(CheckSlice(snapshot, RankSlice(1), kTimeout)->has_value());
  REQUIRE(snapshot.distrusts(RankSlice(1)));
  Perturb(weights, 0.1, random);
  CHECK(sender.Publish(weights, FullCause::kAsked)->after ==
        DigestsOf(sender.state->layout(), weights));
  CHECK_FALSE(snapshot.distrusts(RankSlice(1)));
  CHECK_FALSE(CheckSlice(snapshot, RankSlice(1), kTimeout)->has_value());
}

TEST_CASE("a reader ends exactly while full versions overwrite what it reads", "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(LargeLayout());
  const RankLayout& layout = sender.state->layout();
  Weights weights = RandomWeights(layout, random);
  sender.Publish(weights);
  const Weights first = weights;
  Perturb(weights, 0.01, random);
  sender.Publish(weights);
  const Weights second = weights;
  // Readers of the newest version, and of one from which a delta leads there.
  const auto of_first = sender.Reader(1);
  const auto of_second = sender.Reader(2);
  Weights read_first = RandomWeights(layout, random);
  Weights read_second = read_first;
  for (int step = 0; step < 4; ++step) {
    REQUIRE(ReadSome(sender, *of_first, read_first).ok());
    REQUIRE(ReadSome(sender, *of_second, read_second).ok());
    Perturb(weights, 0.1, random);
    sender.Publish(weights, step == 2 ? FullCause::kNone : FullCause::kAsked);
  }
  REQUIRE(ReadRest(sender, *of_first, read_first).ok());
  REQUIRE(ReadRest(sender, *of_second, read_second).ok());
  CHECK(read_first == first);
  CHECK(read_second == second);
  Weights newest = read_first;
  REQUIRE(ReadRest(sender, *sender.Reader(sender.version), newest).ok());
  CHECK(newest == weights);
}

TEST_CASE("a version that was overwritten before it was read is refused, the next are kept",
          "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(SmallLayout());
  Weights weights = RandomWeights(sender.state->layout(), random);
  sender.Publish(weights);
  weights = RandomWeights(sender.state->layout(), random);
  sender.Publish(weights, FullCause::kAsked);
  Weights read = RandomWeights(sender.state->layout(), random);
  CHECK(absl::IsAborted(ReadRest(sender, *sender.Reader(1), read)));
  // The trainer publishes again before anybody comes for version 2.
  const Weights second = weights;
  weights = RandomWeights(sender.state->layout(), random);
  sender.Publish(weights, FullCause::kAsked);
  REQUIRE(ReadRest(sender, *sender.Reader(2), read).ok());
  CHECK(read == second);
}

TEST_CASE("a reader that comes during a capture gets what is kept for those who came too late",
          "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(SmallLayout());
  const RankLayout& layout = sender.state->layout();
  const Weights first = RandomWeights(layout, random);
  sender.Publish(first);
  sender.state->snapshot->reads().Refused();
  const Weights second = RandomWeights(layout, random);
  std::unique_ptr<FullReader> reader;
  Weights read = second;
  const bool given_up = GENERATE(false, true);
  {
    Capture capture(*sender.state->snapshot, sender.pool, WeightVersion(2), DeltaProfile::kFast,
                    FullCause::kAsked);
    WeightsSource source(layout, second);
    const auto all = AllBlocks(layout);
    REQUIRE(capture.Blocks(std::span(all).first(2), source).ok());
    reader = sender.Reader(1);
    CHECK(absl::IsDeadlineExceeded(reader->Next(std::chrono::milliseconds(1)).status()));
    if (!given_up) {
      REQUIRE(capture.Blocks(std::span(all).subspan(2), source).ok());
      REQUIRE(capture.Finish().ok());
    }
  }
  REQUIRE(ReadRest(sender, *reader, read).ok());
  CHECK(read == first);
}

TEST_CASE("after a full version was given up nothing of the snapshot is served", "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(LargeLayout());
  const RankLayout& layout = sender.state->layout();
  Weights weights = RandomWeights(layout, random);
  sender.Publish(weights);
  Perturb(weights, 0.01, random);
  sender.Publish(weights);
  const Weights second = weights;
  const auto open = sender.Reader(2);
  Weights read = RandomWeights(layout, random);
  REQUIRE(ReadSome(sender, *open, read).ok());
  weights = RandomWeights(layout, random);
  const uint64_t undone = sender.state->snapshot->history().undone;
  sender.GiveUp(weights, AllBlocks(layout).size() / 2);
  Snapshot& snapshot = *sender.state->snapshot;
  CHECK_FALSE(snapshot.version().has_value());
  CHECK(snapshot.newest() == WeightVersion(2));
  CHECK(snapshot.history().undone == undone + 1);  // a GPU copies it again

  // A reader that was under way ends, others are refused.
  REQUIRE(ReadRest(sender, *open, read).ok());
  CHECK(read == second);
  for (const uint64_t version : {1, 2}) {
    Weights nothing = read;
    CHECK(absl::IsAborted(ReadRest(sender, *sender.Reader(version), nothing)));
  }
  CHECK(CheckSlice(snapshot, RankSlice(0), kTimeout).status().code() ==
        absl::StatusCode::kFailedPrecondition);
  // Deltas between older versions are served still.
  CHECK(sender.state->log->Object(WeightVersion(1), WeightVersion(2)).ok());

  // The next one is a first version, whatever is wanted.
  sender.version = 2;  // the number was not used
  {
    Capture capture(snapshot, sender.pool, WeightVersion(3));
    WeightsSource source(layout, weights);
    REQUIRE(capture.Blocks(std::vector<BlockRef>{AllBlocks(layout)[0]}, source).ok());
    const auto lacks = capture.Finish();
    CHECK(lacks.status().code() == absl::StatusCode::kFailedPrecondition);
    CHECK(std::string(Message(lacks.status())).find("given up and lacks tensor 'a'") !=
          std::string::npos);
  }
  const RetainedVersionPtr third = sender.Publish(weights);
  CHECK_FALSE(third->base.has_value());
  CHECK(third->full == FullCause::kFirst);
  CHECK(third->after == DigestsOf(layout, weights));
  Weights newest = read;
  REQUIRE(ReadRest(sender, *sender.Reader(3), newest).ok());
  CHECK(newest == weights);
  Perturb(weights, 0.01, random);
  CHECK(sender.Publish(weights)->base == WeightVersion(3));
}

TEST_CASE("a full version that is given up before its first block changes nothing",
          "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  Sender sender(SmallLayout());
  Weights weights = RandomWeights(sender.state->layout(), random);
  sender.Publish(weights);
  sender.GiveUp(weights, 0);
  CHECK(sender.state->snapshot->version() == WeightVersion(1));
  Weights read = RandomWeights(sender.state->layout(), random);
  REQUIRE(ReadRest(sender, *sender.Reader(1), read).ok());
  CHECK(read == weights);
}

}  // namespace
}  // namespace dws
