// Prepare and commit together, against a trainer and an engine in this process.
#include "receiver_daemon/commit/commit_pipeline.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <variant>
#include <vector>

#include "tests/fakes/jumping_clock.h"
#include "tests/fakes/memory_version_ledger.h"
#include "tests/receiver_daemon/fake_engine.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {
namespace {

using Log = std::vector<std::string>;

std::vector<std::shared_ptr<const RankLayout>> Ranks() {
  const TensorSpec rows{
      .name = "rows", .dtype = DType::kBF16, .shape = {200, 1000}, .cuts = {{0, {50, 100}}}};
  return {MakeRankLayout(
              {{.tensor = {.name = "head", .dtype = DType::kBF16, .shape = {70'000}, .cuts = {}}},
               {.tensor = rows, .cells = {{0, 2}}}}),
          MakeRankLayout({{.tensor = rows, .cells = {{2, 1}}}})};
}

// An engine that runs version 1; version 2 is published.
struct Job {
  Job() {
    trainer.Publish();
    trainer.Publish();
    engine.Load(trainer, 1);
    live = LiveAt(trainer, *engine.weights, 1, pool);
    REQUIRE(ledger.Append(StreamAccepted{.stream = trainer.stream()}).ok());
  }

  Result<Prepared> Prepare(uint64_t version) {
    Preparer preparer(trainer, trainer.sources(), pool, clock,
                      {.spool_folder = "/tmp", .staging_bytes_max = staging_bytes_max});
    return preparer.Prepare(*engine.weights, live, trainer.Target(version));
  }
  Status Commit(uint64_t version) {
    const auto prepared = Prepare(version);
    DWS_RETURN_IF_ERROR(prepared.status());
    CommitPipeline pipeline(trainer, ledger, pool, clock, std::chrono::seconds(1));
    const auto done = pipeline.Commit({.control = control,
                                       .weights = *engine.weights,
                                       .is_current = [this] { return is_current; }},
                                      live, *prepared, release);
    DWS_RETURN_IF_ERROR(done.status());
    last_pause = done->pause;
    last_times = done->times;
    pipeline.Acknowledge(*prepared, done->pause, Duration::zero());
    return OkStatus();
  }
  bool Did(const std::string& what) const {
    const Log log = trainer.Log();
    return std::find(log.begin(), log.end(), what) != log.end();
  }
  bool RunsUnchanged() const {
    return engine.Equals(trainer, 1) && live.at.has_value() &&
           live.at->version == WeightVersion(1) &&
           (control.log.empty() || control.log.back() == "resume 1");
  }

  JumpingClock clock;
  ThreadPool pool{1};
  FakeTrainer trainer{Ranks()};
  FakeEngine engine{trainer.layouts(), 2};
  FakeControl control;
  MemoryReceiverLedger ledger;
  LiveState live;
  uint64_t staging_bytes_max = uint64_t{1} << 30;
  bool is_current = true;
  Duration last_pause = Duration::zero();
  VersionTimes last_times;
  CommitPipeline::Release release = CommitPipeline::Release::kAtOnce;
};

}  // namespace

TEST_CASE("an engine is told a number for each tensor that changes with it alone", "[commit]") {
  Job job;
  REQUIRE(job.Commit(2).ok());
  const TensorContents second = job.control.contents;
  REQUIRE(second.size() == 2);
  REQUIRE(job.Commit(2).ok());
  CHECK(job.control.contents == second);
  job.trainer.Publish();
  REQUIRE(job.Commit(3).ok());
  REQUIRE(job.control.contents.size() == 2);
  for (const auto& [tensor, content] : job.control.contents) CHECK(content != second.at(tensor));
}

TEST_CASE("a delta is staged, written in the pause between intent and record, and acknowledged",
          "[commit]") {
  Job job;
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
  CHECK(job.control.log == Log{"pause", "post_commit 2", "resume 2"});
  Log told = job.trainer.Log();
  std::sort(told.begin(), told.end());
  CHECK(told == Log{"committed 2", "committed 2", "object 1->2", "object 1->2"});
  CHECK(job.ledger.state().committed()->version == WeightVersion(2));
  CHECK_FALSE(job.ledger.state().open_intent().has_value());
  REQUIRE(job.ledger.records().size() == 3);
  CHECK(std::get<CommitIntent>(job.ledger.records()[1]).base == WeightVersion(1));
  CHECK(job.live.at->version == WeightVersion(2));
  // The tracked live state equals the contents of memory.
  const LiveState read = ReadLive(*job.engine.weights, job.pool);
  for (uint32_t r = 0; r < 2; ++r) {
    for (size_t s = 0; s < read.ranks[r].slices.size(); ++s) {
      CHECK(job.live.ranks[r].slices[s].digest == read.ranks[r].slices[s].digest);
    }
  }
  CHECK(job.control.resumed.state_token ==
        EngineToken({job.live.ranks[0].state_token, job.live.ranks[1].state_token}));
}

TEST_CASE("a pause begins when the engine has stopped, and not before it was asked to",
          "[commit]") {
  using std::chrono::seconds;
  Job job;
  job.control.on_pause = [&job] { job.clock.Jump(seconds(5000)); };  // a forward pass ends
  job.control.stopped_for = seconds(200);
  REQUIRE(job.Commit(2).ok());
  CHECK(job.last_pause >= seconds(200));
  CHECK(job.last_pause < seconds(1000));  // with the time of the commit itself
  job.trainer.Publish();
  job.control.stopped_for = seconds(9000);
  REQUIRE(job.Commit(3).ok());
  CHECK(job.last_pause >= seconds(5000));
  CHECK(job.last_pause < seconds(6000));
}

TEST_CASE("a forward pass that runs on counts for the gate, and not for the pause", "[commit]") {
  using std::chrono::seconds;
  Job job;
  job.control.on_pause = [&job] { job.clock.Jump(seconds(5000)); };
  job.control.stopped_for = seconds(0);
  REQUIRE(job.Commit(2).ok());
  CHECK(job.last_times[VersionStage::kGate] >= seconds(5000));
  CHECK(job.last_times[VersionStage::kWrite] > Duration::zero());
  CHECK(job.last_times[VersionStage::kRecord] > Duration::zero());
  CHECK(job.last_times.sum() - job.last_times[VersionStage::kGate] < seconds(1000));
  CHECK(job.last_pause < seconds(1000));
}

TEST_CASE("a commit that the group leader releases ends with the engine paused", "[commit]") {
  Job job;
  job.release = CommitPipeline::Release::kByLeader;
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
  CHECK(job.live.at->version == WeightVersion(2));
  CHECK(job.control.log == Log{"pause", "post_commit 2"});
  CHECK(job.ledger.state().committed()->version == WeightVersion(2));

  job.trainer.Publish();
  job.control.log.clear();
  job.control.fail_pause = DeadlineExceededError("busy");
  CHECK(absl::IsDeadlineExceeded(job.Commit(3)));
  CHECK(job.engine.Equals(job.trainer, 2));
  CHECK(job.live.at->version == WeightVersion(2));
  CHECK(job.control.log == Log{"pause"});
  CHECK_FALSE(job.ledger.state().open_intent().has_value());
}

TEST_CASE("the versions from base to target are applied as one delta", "[commit]") {
  Job job;
  job.trainer.Publish();
  job.trainer.Publish();
  REQUIRE(job.Commit(4).ok());
  CHECK(job.engine.Equals(job.trainer, 4));
  CHECK(job.Did("object 1->4"));
}

TEST_CASE("a commit beyond the staging cap still writes the same bytes", "[commit]") {
  Job job;
  job.staging_bytes_max = 64;
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
}

TEST_CASE("without a delta only the slices that differ are fetched in full", "[commit]") {
  Job job;
  job.trainer.current()[0][1][5] ^= std::byte{1};
  job.trainer.Publish(0);
  // Version 3 differs from 2 in every slice by one element or so; make the engine equal to 3
  // except for one slice.
  job.engine.Load(job.trainer, 3);
  SliceBytes other = job.engine.Read(0, 1);
  other[9] ^= std::byte{2};
  job.engine.Write(0, 1, other, 1);
  job.live = ReadLive(*job.engine.weights, job.pool);
  REQUIRE(job.Commit(3).ok());
  CHECK(job.engine.Equals(job.trainer, 3));
  CHECK(job.Did("full 3 {1}"));
  CHECK_FALSE(job.Did("object 1->3"));
}

TEST_CASE("first contact fetches all tensors in full", "[commit]") {
  Job job;
  for (uint32_t r = 0; r < 2; ++r) {
    for (uint32_t s = 0; s < job.trainer.ranks()[r]->slice_count(); ++s) {
      SliceBytes zeros(job.engine.Read(r, s).size());
      for (size_t copy = 0; copy < 2; ++copy) job.engine.Write(r, s, zeros, copy);
    }
  }
  job.live = ReadLive(*job.engine.weights, job.pool);
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
  CHECK(job.Did("full 2 {0,1,2}"));
}

TEST_CASE("a delta that is no longer retained is replaced by full tensors without a rejection",
          "[commit]") {
  Job job;
  job.trainer.fail_objects = AbortedError("not retained");
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
  CHECK_FALSE(job.Did("rejected 2"));
}

TEST_CASE("a receiver that NACKs keeps its last good version and repairs what it named",
          "[protocol]") {
  Job job;
  // A bit flips in the engine, in a slice whose digest is tracked, and the trainer changes the
  // same word.
  job.trainer.current()[0][0][0] ^= std::byte{1};
  job.trainer.Publish(0);
  SliceBytes drifted = job.engine.Read(0, 0);
  drifted[0] ^= std::byte{128};
  job.engine.Write(0, 0, drifted);
  REQUIRE(job.Commit(3).ok());
  CHECK(job.engine.Equals(job.trainer, 3));
  REQUIRE(job.trainer.rejections.size() == 1);
  CHECK(job.trainer.rejections[0].last_good == WeightVersion(1));
  CHECK(job.trainer.rejections[0].slices == std::vector<RankSlice>{RankSlice(0)});
  CHECK(job.Did("full 3 {0}"));
}

TEST_CASE("a flipped byte in header, manifest or frames is rejected, and repaired in full",
          "[corruption]") {
  Job job;
  const size_t size = job.trainer.Object(0, 1, 2).size();
  const size_t position =
      GENERATE_COPY(size_t{0}, size_t{9}, size_t{20}, kObjectHeaderBytes + 3, size / 2, size - 1);
  job.trainer.damage_object = [position](std::vector<std::byte>& object) {
    object[std::min(position, object.size() - 1)] ^= std::byte{16};
  };
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
  CHECK_FALSE(job.trainer.rejections.empty());
}

TEST_CASE("a truncated object is rejected, and repaired in full", "[corruption]") {
  Job job;
  job.trainer.damage_object = [](std::vector<std::byte>& object) {
    object.resize(object.size() - 1);
  };
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
  CHECK_FALSE(job.trainer.rejections.empty());
}

TEST_CASE("damaged full tensors are never written", "[corruption]") {
  Job job;
  job.trainer.fail_objects = AbortedError("not retained");
  job.trainer.damage_full_block = [](std::vector<std::byte>& block) {
    block.back() ^= std::byte{1};
  };
  CHECK(absl::IsUnavailable(job.Commit(2)));
  CHECK(job.RunsUnchanged());
  CHECK(job.control.log.empty());
}

TEST_CASE("a sender that is away leaves the engine running on its version", "[faults]") {
  Job job;
  job.trainer.fail_objects = UnavailableError("connection refused");
  CHECK(absl::IsUnavailable(job.Commit(2)));
  CHECK(job.RunsUnchanged());
  CHECK(job.ledger.records().size() == 1);
}

TEST_CASE("an intent that cannot be recorded stops the commit before the pause", "[faults]") {
  Job job;
  job.ledger.FailNext(ResourceExhaustedError("disk full"));
  CHECK(absl::IsResourceExhausted(job.Commit(2)));
  CHECK(job.RunsUnchanged());
  CHECK(job.control.log.empty());
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
}

TEST_CASE("an engine that does not pause in time keeps running its version", "[faults]") {
  Job job;
  job.control.fail_pause = DeadlineExceededError("busy");
  CHECK(absl::IsDeadlineExceeded(job.Commit(2)));
  CHECK(job.RunsUnchanged());
  CHECK(job.control.log == Log{"pause", "resume 1"});
  CHECK_FALSE(job.ledger.state().open_intent().has_value());
  job.control.fail_pause = OkStatus();
  REQUIRE(job.Commit(2).ok());
  CHECK(job.engine.Equals(job.trainer, 2));
}

TEST_CASE("a staged version is discarded when the engine has attached again meanwhile",
          "[faults]") {
  Job job;
  job.is_current = false;
  CHECK(absl::IsUnavailable(job.Commit(2)));
  CHECK(job.RunsUnchanged());
}

TEST_CASE("a failed hook leaves the engine paused and the next attempt finds the version in memory",
          "[faults]") {
  Job job;
  job.control.fail_post_commit = FailedPreconditionError("no scale");
  CHECK(absl::IsFailedPrecondition(job.Commit(2)));
  CHECK_FALSE(job.live.known());
  CHECK(job.control.log.back() == "post_commit 2");
  CHECK(job.ledger.state().open_intent().has_value());

  job.control.fail_post_commit = OkStatus();
  job.trainer.ClearLog();
  job.live = ReadLive(*job.engine.weights, job.pool);
  REQUIRE(job.Commit(2).ok());
  CHECK(job.control.log.back() == "resume 2");
  for (const std::string& what : job.trainer.Log()) CHECK(what.find("full") == std::string::npos);
}

TEST_CASE("a commit whose resume fails is repeated and is not reported to senders", "[commit]") {
  Job job;
  job.control.fail_resume = UnavailableError("no connection");
  const Status failed = job.Commit(2);
  CHECK(absl::IsUnavailable(failed));
  CHECK(Message(failed) == "resuming the engine: no connection");
  CHECK_FALSE(job.live.known());
  CHECK_FALSE(job.Did("committed 2"));
  CHECK(job.ledger.state().open_intent().has_value());

  job.control.fail_resume = OkStatus();
  job.control.log.clear();
  job.live = ReadLive(*job.engine.weights, job.pool);
  REQUIRE(job.Commit(2).ok());
  CHECK(job.control.log == Log{"pause", "post_commit 2", "resume 2"});
  CHECK(job.live.at->version == WeightVersion(2));
}

TEST_CASE("an engine that neither pauses nor resumes is no longer considered running", "[commit]") {
  Job job;
  job.control.fail_pause = DeadlineExceededError("busy");
  job.control.fail_resume = UnavailableError("no connection");
  const Status failed = job.Commit(2);
  CHECK(absl::IsDeadlineExceeded(failed));
  CHECK(Message(failed) == "nothing was written: busy; resuming the engine: no connection");
  CHECK_FALSE(job.live.known());
  CHECK(job.engine.Equals(job.trainer, 1));
}

TEST_CASE(
    "after a crash in the middle of the writes the next commit brings all slices to one version",
    "[faults]") {
  Job job;
  REQUIRE(job.ledger
              .Append(CommitIntent{.stream = job.trainer.stream(),
                                   .base = WeightVersion(1),
                                   .target = WeightVersion(2),
                                   .generation = Generation(1)})
              .ok());
  job.engine.Write(0, 1, job.trainer.At(2, 0)[1], 1);  // one copy of one slice had been written
  job.trainer.Publish();
  job.live = ReadLive(*job.engine.weights, job.pool);
  REQUIRE(job.Commit(3).ok());
  CHECK(job.engine.Equals(job.trainer, 3));
  CHECK_FALSE(job.ledger.state().open_intent().has_value());
}

TEST_CASE("memory that already holds a published version is adopted without a transfer",
          "[commit]") {
  Job job;
  job.live = ReadLive(*job.engine.weights, job.pool);
  Preparer preparer(job.trainer, job.trainer.sources(), job.pool, job.clock,
                    {.spool_folder = "/tmp", .staging_bytes_max = 1 << 20});
  const auto same = preparer.PrepareAdoption(job.live, job.trainer.Target(1));
  REQUIRE(same.ok());
  REQUIRE(same->has_value());
  const auto other = preparer.PrepareAdoption(job.live, job.trainer.Target(2));
  REQUIRE(other.ok());
  CHECK_FALSE(other->has_value());
  CHECK_FALSE((*same)->repairs());
}

}  // namespace dws
