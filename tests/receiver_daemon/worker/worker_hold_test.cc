// The commit policy: versions that the worker holds back until a boundary, or until the engine
// would fall too far behind.
#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/sync_state/presence_limits.h"
#include "receiver_daemon/worker/worker.h"
#include "tests/receiver_daemon/worker_fixture.h"

namespace dws {
namespace {

constexpr CommitPolicy kBoundary{.kind = CommitPolicy::Kind::kBoundary};
constexpr CommitPolicy kTwo{.kind = CommitPolicy::Kind::kMaxBehind, .max_behind = 2};

// An engine that runs with version 1.
struct Holding {
  explicit Holding(const CommitPolicy& policy, const ScrubOptions& scrub = {})
      : daemon(trainer, ledger, {}, scrub, {}, false, policy) {
    daemon.Connect();
    client.Attach(trainer.layouts());
    daemon.Offer({trainer.Publish()});
    Step();
    REQUIRE(client.running == 1);  // first contact is not held back
    client.pauses = 0;
    trainer.ClearLog();
  }
  void Step() { REQUIRE(daemon.worker.Step().ok()); }
  // One more version, and a round.
  void Publish() {
    const uint64_t version = trainer.Publish();
    offered.push_back(version);
    daemon.Offer(offered);
    Step();
  }
  CommitBoundary& boundary() { return daemon.worker.boundary(); }
  WorkerStatus status() const { return daemon.worker.status(); }
  bool Did(const std::string& what) const {
    const std::vector<std::string> log = trainer.Log();
    return std::find(log.begin(), log.end(), what) != log.end();
  }
  void Flip() {
    client.created.region.mutable_bytes()[client.views[0].offset_bytes + 17] ^= std::byte{4};
  }

  FakeTrainer trainer{OneRank()};
  MemoryReceiverLedger ledger;
  Daemon daemon;
  Client client{*trainer.layouts(), daemon.registry};
  std::vector<uint64_t> offered{1};
};

size_t Intents(const MemoryReceiverLedger& ledger) {
  return static_cast<size_t>(std::count_if(
      ledger.records().begin(), ledger.records().end(),
      [](const auto& record) { return std::holds_alternative<CommitIntent>(record); }));
}

}  // namespace

TEST_CASE("a version is staged and held until a boundary", "[hold]") {
  Holding it(kBoundary);
  CHECK(it.status().held_seconds == 0);
  it.Publish();
  CHECK(it.Did("staged 2"));
  CHECK(it.client.running == 1);
  CHECK(it.client.pauses == 0);
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(it.status().stage == "staged");
  CHECK(it.status().target == WeightVersion(2));
  CHECK(it.status().staging_bytes > 0);
  CHECK(it.status().ready);  // a version that is held is no trouble
  CHECK(it.status().trouble.empty());
  it.daemon.clock.Jump(std::chrono::seconds(9));
  CHECK(it.status().held_seconds >= 9);
  it.trainer.ClearLog();
  it.Step();
  CHECK(it.trainer.Log().empty());

  const Opened boundary(it.boundary(), /*stays=*/false);
  CHECK_FALSE(boundary.over());
  it.Step();
  REQUIRE(boundary.over());
  CHECK(boundary.status().ok());
  CHECK(it.client.running == 2);
  CHECK(it.client.pauses == 1);
  CHECK(it.client.Holds(it.trainer, 2));
  CHECK(it.status().stage == "idle");
  CHECK(it.status().held_seconds == 0);
  CHECK(it.status().replaced == 0);

  it.Publish();  // that boundary has passed
  CHECK(it.client.running == 2);
}

TEST_CASE("a boundary at which nothing is held is over at once", "[hold]") {
  Holding it(kBoundary);
  const Opened first(it.boundary(), false, 1);
  CHECK(first.over());
  it.Publish();
  CHECK(it.client.running == 1);
  Holding immediate({});
  immediate.Publish();
  CHECK(immediate.client.running == 2);
  CHECK(Opened(immediate.boundary(), false, 2).over());
}

TEST_CASE("while a boundary stays versions are committed as they come", "[hold]") {
  Holding it(kBoundary);
  Opened boundary(it.boundary(), /*stays=*/true);
  it.Publish();
  CHECK(it.client.running == 2);
  it.Publish();
  CHECK(it.client.running == 3);
  CHECK_FALSE(boundary.over());
  boundary.End();
  CHECK(boundary.over());
  CHECK(boundary.ended());
  it.Publish();
  CHECK(it.client.running == 3);
}

TEST_CASE("a newer version replaces the held one exactly", "[hold]") {
  Holding it(kBoundary);
  const size_t intents = Intents(it.ledger);
  it.Publish();
  const double first = it.status().held_seconds;
  it.Publish();
  it.Publish();
  CHECK(it.status().replaced == 2);
  CHECK(it.status().target == WeightVersion(4));
  CHECK(it.status().held_seconds >= first);  // since the first of them
  CHECK(it.client.Holds(it.trainer, 1));
  CHECK(Intents(it.ledger) == intents);
  const Opened boundary(it.boundary(), false);
  it.Step();
  CHECK(boundary.over());
  CHECK(it.client.running == 4);
  CHECK(it.client.Holds(it.trainer, 4));
  CHECK(it.client.pauses == 1);
  CHECK(Intents(it.ledger) == intents + 1);  // of version 4 alone
}

TEST_CASE("at a boundary what is staged is committed before a newer version is staged", "[hold]") {
  Holding it(kBoundary);
  it.Publish();
  const Opened boundary(it.boundary(), false);
  it.Publish();  // comes at the same time
  CHECK(boundary.over());
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
  CHECK(it.status().target == WeightVersion(3));  // held for the next one
  CHECK(it.status().replaced == 0);
}

TEST_CASE("an engine is never more than K versions behind", "[hold]") {
  Holding it(kTwo);
  it.Publish();
  it.Publish();
  CHECK(it.client.running == 1);  // 2 behind
  it.Publish();                   // 3 behind: the staged version is committed at once
  CHECK(it.client.running == 3);
  CHECK(it.client.Holds(it.trainer, 3));
  CHECK(it.client.pauses == 1);
  CHECK(it.status().target == WeightVersion(4));  // staged and held
  CHECK(it.status().stage == "staged");

  it.trainer.Publish();
  it.trainer.Publish();
  it.offered = {4, 5, 6};
  it.daemon.Offer(it.offered);  // too far already
  it.Step();
  CHECK(it.client.running == 6 - 2);
  CHECK(it.status().target == WeightVersion(6));
  const Opened boundary(it.boundary(), false);
  it.Step();
  CHECK(it.client.running == 6);
}

TEST_CASE("drift is repaired at once, whatever is held", "[hold]") {
  Holding it(kBoundary, {.bytes_per_second_max = 1 << 30, .pass = std::chrono::seconds(1)});
  it.Publish();
  CHECK(it.client.running == 1);
  it.Flip();
  for (int i = 0; i < 10 && it.client.running == 1; ++i) {
    it.daemon.clock.Jump(std::chrono::seconds(2));
    static_cast<void>(it.daemon.worker.Step());
  }
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
  CHECK(it.status().mismatches.scrub == 1);
  CHECK(it.status().held_seconds == 0);
}

TEST_CASE("an operator's resync is not held back", "[hold]") {
  Holding it(kBoundary);
  it.Publish();
  const auto task = it.daemon.requests.Resync(false);
  REQUIRE(task.ok());
  it.Step();
  CHECK((*task)->Await(Duration::zero()) == OkStatus());
  CHECK(it.client.running == 2);
}

TEST_CASE("a drain drops what is held, and its end has it staged again", "[hold]") {
  Holding it(kBoundary);
  it.Publish();
  const Opened boundary(it.boundary(), false);
  it.daemon.requests.SetDraining(true);
  it.Step();
  CHECK(it.daemon.requests.drain() == DrainStage::kDrained);
  CHECK(boundary.over());  // nothing is held
  CHECK(it.client.running == 1);
  CHECK(it.status().staging_bytes == 0);
  CHECK(it.status().held_seconds == 0);
  it.daemon.requests.SetDraining(false);
  it.Step();
  CHECK(it.status().stage == "staged");
  CHECK(it.client.running == 1);
}

TEST_CASE("an engine that detaches while a version is held gets it on its return at once",
          "[hold]") {
  Holding it(kBoundary);
  it.Publish();
  const Opened boundary(it.boundary(), false);
  it.daemon.registry.End(it.client.generation, UnavailableError("it has gone"));
  it.Step();
  CHECK(boundary.over());
  CHECK(it.status().held_seconds == 0);
  std::ranges::fill(it.client.created.region.mutable_bytes(), std::byte{1});  // a new process
  it.client.Attach(it.trainer.layouts());
  it.Step();
  CHECK(it.client.running == 2);
  CHECK(it.client.Holds(it.trainer, 2));
}

TEST_CASE("after a restart the engine keeps its version and the newer one is held again",
          "[hold]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  std::optional<Daemon> daemon;
  daemon.emplace(trainer, ledger, nullptr, ScrubOptions{}, GroupPlace{}, false, kBoundary);
  Client client(*trainer.layouts(), daemon->registry);
  daemon->Connect();
  client.Attach(trainer.layouts());
  daemon->Offer({trainer.Publish()});
  REQUIRE(daemon->worker.Step().ok());
  daemon->Offer({1, trainer.Publish()});
  REQUIRE(daemon->worker.Step().ok());
  REQUIRE(daemon->worker.status().stage == "staged");
  daemon->registry.EndAll(UnavailableError("the receiver ends"));

  Daemon restarted(trainer, ledger, nullptr, ScrubOptions{}, GroupPlace{}, false, kBoundary);
  Client back(*trainer.layouts(), restarted.registry);
  std::ranges::copy(client.created.region.bytes(), back.created.region.mutable_bytes().begin());
  restarted.Connect();
  back.Attach(trainer.layouts());
  restarted.Offer({1, 2});
  REQUIRE(restarted.worker.Step().ok());
  CHECK(back.running == 1);  // proved by its digests
  CHECK(back.Holds(trainer, 1));
  CHECK(restarted.worker.status().stage == "staged");
  const Opened boundary(restarted.worker.boundary(), false);
  REQUIRE(restarted.worker.Step().ok());
  CHECK(back.running == 2);
  CHECK(back.Holds(trainer, 2));
}

TEST_CASE("a boundary ends also if its commit fails, and the version is staged again", "[hold]") {
  Holding it(kBoundary);
  it.Publish();
  it.client.hangs = true;
  const Opened boundary(it.boundary(), false, 1);
  CHECK_FALSE(it.daemon.worker.Step().ok());
  CHECK(boundary.over());
  it.client.hangs = false;
  it.client.On(PauseCommand{});  // its late answer
  for (int i = 0; i < 3; ++i) static_cast<void>(it.daemon.worker.Step());
  CHECK(it.status().stage == "staged");
  CHECK(it.client.Holds(it.trainer, 1));
  const Opened next(it.boundary(), false, 2);
  it.Step();
  CHECK(it.client.Holds(it.trainer, 2));
}

TEST_CASE("senders that go take what is held with them, and boundaries do not wait", "[hold]") {
  Holding it(kBoundary);
  it.Publish();
  const Opened boundary(it.boundary(), false);
  it.daemon.subscription.OnDisconnect(SenderIndex(0), UnavailableError("cut"));
  it.Step();
  CHECK(boundary.over());
  CHECK(it.client.running == 1);
  CHECK(it.status().ready);
  it.daemon.Connect();
  it.daemon.Offer(it.offered);
  it.Step();
  CHECK(it.status().stage == "staged");
}

TEST_CASE("for an engine that asks for its commits, its requests are the boundaries", "[hold]") {
  FakeTrainer trainer(OneRank());
  MemoryReceiverLedger ledger;
  Daemon daemon(trainer, ledger, {}, {}, {}, false, kBoundary);
  Client client(*trainer.layouts(), daemon.registry);
  client.on_request = true;
  daemon.Connect();
  client.Attach(trainer.layouts());
  daemon.Offer({trainer.Publish()});
  client.lease->OnCommitRequest({.version = WeightVersion(1), .stream = {}});
  REQUIRE(daemon.worker.Step().ok());
  daemon.Offer({1, trainer.Publish()});
  const Opened boundary(daemon.worker.boundary(), /*stays=*/true);
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 1);
  CHECK(daemon.worker.status().held_seconds == 0);  // it is the engine that waits
  client.lease->OnCommitRequest({.version = WeightVersion(2), .stream = {}});
  REQUIRE(daemon.worker.Step().ok());
  CHECK(client.running == 2);
}

TEST_CASE("a commit and the end of its boundary exclude each other", "[hold]") {
  ChangeSignal changed;
  CommitBoundary boundary(changed);
  CHECK_FALSE(boundary.Hold());
  Opened stays(boundary, /*stays=*/true, 1);
  Opened passes(boundary, /*stays=*/false, 2);
  CHECK(boundary.Hold());  // the commit begins
  stays.End();
  CHECK_FALSE(stays.over());
  CHECK_FALSE(stays.ended());
  CHECK(boundary.Drop(2));  // its caller has hung up
  Opened other(boundary, /*stays=*/true, 3);
  const int owner = 0;
  CHECK_FALSE(boundary.Drop(3, &owner));  // of a caller that did not open it
  boundary.Settle();
  CHECK(stays.over());
  CHECK(stays.ended());
  CHECK_FALSE(passes.over());
  CHECK(boundary.Hold());  // for the other
  CHECK_FALSE(other.over());
  other.End();
  boundary.Settle();
  CHECK(other.over());
  CHECK_FALSE(boundary.Hold());  // none counts now
  stays.End();                   // there is none: over at once
  CHECK_FALSE(boundary.Drop(1));
}

TEST_CASE("an id that is used again is dropped by its owner alone", "[hold]") {
  ChangeSignal changed;
  CommitBoundary boundary(changed);
  const int first = 0;
  const int second = 0;
  int over = 0;
  const auto count = [&over](const Status&) { ++over; };
  REQUIRE(boundary.Begin(1, true, count, &first).ok());
  CHECK(absl::IsAlreadyExists(boundary.Begin(1, true, count, &second)));
  CHECK_FALSE(boundary.Drop(1, &second));  // its call was refused
  CHECK(boundary.Hold());
  boundary.Settle();
  boundary.End(1, count);
  CHECK(over == 2);
  REQUIRE(boundary.Begin(1, true, count, &second).ok());
  CHECK_FALSE(boundary.Drop(1, &first));  // that call has been answered
  CHECK(boundary.Drop(1, &second));
  CHECK(over == 2);
}

TEST_CASE("calls that wait for a commit are bounded", "[hold]") {
  ChangeSignal changed;
  CommitBoundary boundary(changed);
  const Opened open(boundary, true, 1);
  REQUIRE(boundary.Hold());
  size_t over = 0;
  for (size_t i = 0; i < limits::kBoundariesOpenMax; ++i) {
    boundary.End(99, [&over](const Status& status) { over += status.ok() ? 1 : 0; });
  }
  CHECK(over == 0);
  Status refused;
  boundary.End(99, [&refused](const Status& status) { refused = status; });
  CHECK(absl::IsResourceExhausted(refused));
  CHECK_THAT(std::string(Message(refused)), Catch::Contains("256 calls wait already"));
  boundary.Settle();
  CHECK(over == limits::kBoundariesOpenMax);
}

TEST_CASE("boundaries have ids of their own, and are bounded", "[hold]") {
  ChangeSignal changed;
  CommitBoundary boundary(changed);
  const Opened first(boundary, true, 1);
  const auto ignore = [](const Status&) {};
  CHECK_THAT(std::string(Message(boundary.Begin(1, false, ignore))),
             Catch::Contains("boundary 1 is open already"));
  Status status = OkStatus();
  for (uint64_t id = 2; status.ok() && id < 1000; ++id) status = boundary.Begin(id, true, ignore);
  CHECK(absl::IsResourceExhausted(status));
  const uint64_t own = boundary.NewId();
  CHECK(own >= CommitBoundary::kOwnIds);
  CHECK(boundary.NewId() != own);
  boundary.Close(UnavailableError("stopping"));
  CHECK(absl::IsUnavailable(first.status()));
  CHECK(absl::IsUnavailable(boundary.Begin(1, true, ignore)));
}

}  // namespace dws
