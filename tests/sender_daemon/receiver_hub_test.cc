// Which receivers a trainer's wait waits for when receivers come back, or their stream is
// forgotten.
#include "sender_daemon/serve/receiver_hub.h"

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/threads/mutex.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/silent_connection.h"
#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

using Names = std::vector<std::string>;
constexpr std::chrono::seconds kLaggardAfter{10};

// A wait of policy `all`, and how it ended.
class Waiting {
 public:
  void End(const Status& status, const WaitOutcome& outcome) {
    MutexLock lock(mutex_);
    status_ = status;
    outcome_ = outcome;
  }
  std::optional<Status> status() const {
    MutexLock lock(mutex_);
    return status_;
  }
  WaitOutcome outcome() const {
    MutexLock lock(mutex_);
    return outcome_;
  }

 private:
  mutable Mutex mutex_;
  std::optional<Status> status_ GUARDED_BY(mutex_);
  WaitOutcome outcome_ GUARDED_BY(mutex_);
};

// A sender that leaves laggards out, and remembers receivers.
struct Host {
  Host() { Start(); }
  void Start() {
    hub.emplace(clock, "job", kLaggardAfter,
                std::make_unique<ReceiverMemory>(files, folder.path(), [] { return 1; }));
    hub->Welcome(state);
  }
  ConnectionId Connect(const std::string& id) {
    const auto connected = hub->Connect("job", id, std::make_shared<SilentConnection>());
    REQUIRE(connected.ok());
    return *connected;
  }
  void Commit(ConnectionId connection, uint64_t version, const Digest& token) {
    hub->OnCommitted(connection, state->stream,
                     {.version = WeightVersion(version), .state_token = token});
  }
  // Publishes as the pipeline does. Returns the state token.
  Digest Publish(uint64_t version, uint64_t seed = 1) {
    std::mt19937_64 random(seed);
    const auto sealed = PublishAll(state, pool, version, RandomWeights(state->layout(), random));
    hub->Announce();
    return sealed->manifest.state_token;
  }
  std::shared_ptr<Waiting> Wait(uint64_t version) {
    auto waiting = std::make_shared<Waiting>();
    hub->AddWait(
        {.version = WeightVersion(version),
         .condition = {.policy = WaitCondition::Policy::kAll},
         .deadline = clock.Now() + std::chrono::hours(1),
         .cancelled = [] { return false; },
         .done = [waiting](const Status& status,
                           const WaitOutcome& outcome) { waiting->End(status, outcome); }});
    return waiting;
  }

  PosixFileSystem files;
  TempFolder folder;
  JumpingClock clock;
  ThreadPool pool{1};
  RankStatePtr state = MakeState(SmallLayout(), {.bytes_max = 1 << 20, .versions_max = 10});
  std::optional<ReceiverHub> hub;
};

// A restarted sender: "a" is back and has version 5, "b" is awaited, and the laggard time has long
// passed.
struct Restarted : Host {
  Restarted() {
    Connect("a");
    Connect("b");
    hub->Stop();
    Start();
    token = Publish(5);
    Commit(Connect("a"), 5, token);
    clock.Jump(6 * kLaggardAfter);
    waiting = Wait(5);
    CHECK_FALSE(waiting->status().has_value());
  }
  Digest token;  // of version 5
  std::shared_ptr<Waiting> waiting;
};

}  // namespace

TEST_CASE("an awaited receiver counts once it reports the version", "[receivers]") {
  Restarted host;
  const ConnectionId back = host.Connect("b");
  CHECK_FALSE(host.waiting->status().has_value());
  host.Commit(back, 5, host.token);
  REQUIRE(host.waiting->status().has_value());
  CHECK(host.waiting->status()->ok());
  CHECK(host.waiting->outcome().committed == Names{"a", "b"});
  CHECK(host.waiting->outcome().left_out.empty());
}

TEST_CASE(
    "an awaited receiver that comes back without the version is waited for until the laggard time "
    "has passed",
    "[receivers]") {
  Restarted host;
  host.Connect("b");
  CHECK_FALSE(host.waiting->status().has_value());
  host.clock.Jump(kLaggardAfter / 2);
  CHECK_FALSE(host.Wait(5)->status().has_value());
  CHECK_FALSE(host.waiting->status().has_value());
  host.clock.Jump(kLaggardAfter);
  REQUIRE(Eventually([&] { return host.waiting->status().has_value(); }));
  CHECK(host.waiting->outcome().committed == Names{"a"});
  REQUIRE(host.waiting->outcome().left_out.size() == 1);
  CHECK(host.waiting->outcome().left_out[0].receiver_id == "b");
}

TEST_CASE("a report about a forgotten stream does not end a wait after the same stream restarts",
          "[receivers]") {
  Host host;
  const ConnectionId receiver = host.Connect("a");
  host.Commit(receiver, 7, Digest{.lane0 = 7, .lane1 = 7});
  const auto before = host.Wait(8);
  host.hub->Forget();
  CHECK(absl::IsAborted(*before->status()));
  host.hub->Welcome(host.state);  // the same stream, from version 1
  const auto waiting = host.Wait(1);
  const Digest token = host.Publish(1);
  CHECK_FALSE(waiting->status().has_value());
  host.Commit(receiver, 1, token);
  REQUIRE(waiting->status().has_value());
  CHECK(waiting->status()->ok());
}

TEST_CASE("a report about a version before its publication does not end a wait", "[receivers]") {
  Host host;
  const ConnectionId receiver = host.Connect("a");
  // A restarted sender knows less than its receivers: it may have lost part of its state.
  host.Commit(receiver, 6, Digest{.lane0 = 7, .lane1 = 7});
  const auto fourth = host.Wait(4);
  CHECK_FALSE(fourth->status().has_value());
  host.Publish(4);
  CHECK_FALSE(fourth->status().has_value());
  CHECK_FALSE(host.hub->Receivers().at("a").committed.has_value());

  const auto sixth = host.Wait(6);
  const Digest published = host.Publish(6, 2);
  host.Commit(receiver, 6, Digest{.lane0 = 7, .lane1 = 7});
  CHECK_FALSE(sixth->status().has_value());
  host.Commit(receiver, 6, published);
  REQUIRE(sixth->status().has_value());
  CHECK(sixth->status()->ok());
  CHECK(fourth->status()->ok());
}

TEST_CASE("a receiver that reports the version before a restarted sender publishes it again counts",
          "[receivers]") {
  Host host;
  const Digest token = host.Publish(3);
  Host again;
  const ConnectionId receiver = again.Connect("a");
  again.Commit(receiver, 3, token);
  const auto waiting = again.Wait(3);
  CHECK_FALSE(waiting->status().has_value());  // not yet published by this process
  CHECK(again.Publish(3) == token);
  REQUIRE(waiting->status().has_value());
  CHECK(waiting->status()->ok());
}

}  // namespace dws
