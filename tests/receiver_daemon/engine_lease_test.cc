#include "receiver_daemon/engine/engine_lease.h"

#include <catch2/catch.hpp>
#include <memory>
#include <thread>
#include <variant>
#include <vector>

#include "receiver_daemon/engine/lease_control.h"

namespace dws {
namespace {

constexpr auto kShort = std::chrono::milliseconds(20);
constexpr auto kLong = std::chrono::seconds(20);

EngineVersion Version(uint64_t version) {
  return {.stream = {.incarnation = 1, .id_hi = 1, .id_lo = 1},
          .version = WeightVersion(version),
          .state_token = {}};
}

// A lease whose engine answers as the test sets.
struct Rank {
  explicit Rank(uint32_t engine_rank = 0, bool has_hook = false,
                std::vector<std::string> tensors = {})
      : lease(std::make_shared<EngineLease>(
            engine_rank, Generation(5),
            EngineLease::Needs{.post_commit = has_hook, .tensors = std::move(tensors)})) {}

  void Open() {
    REQUIRE(lease
                ->Open({.send =
                            [this](const LeaseCommand& command) {
                              commands.push_back(command);
                              if (answers) Answer(command);
                            },
                        .end = [this](const Status&) { ended = true; }})
                .ok());
  }
  void Answer(const LeaseCommand& command) {
    if (const auto* pause = std::get_if<PauseCommand>(&command)) {
      lease->OnPaused(
          {.pause_id = pause->pause_id, .generation = Generation(5), .stopped_for = stopped_for});
    }
    if (const auto* hook = std::get_if<PostCommitCommand>(&command)) {
      lease->OnPostCommitDone(hook->pause_id, hook_error);
    }
  }

  std::shared_ptr<EngineLease> lease;
  std::vector<LeaseCommand> commands;
  bool answers = true;
  Duration stopped_for = Duration::zero();
  bool ended = false;
  std::string hook_error;
};

const std::vector<uint64_t>& Contents(const Rank& rank) {
  return std::get<PostCommitCommand>(rank.commands.back()).contents;
}

}  // namespace

TEST_CASE("a hook gets the contents of the tensors of its rank's views, in their order",
          "[lease]") {
  const RealClock clock;
  Rank rank(0, true, {"b", "a", "b"});
  Rank other(1, true, {"c", "lost"});
  rank.Open();
  other.Open();
  LeaseControl control({rank.lease, other.lease}, clock);
  control.OnWriteBegin({{"a", 1}, {"b", 2}, {"c", 3}});
  REQUIRE(control.PostCommit(WeightVersion(2), kLong).ok());
  CHECK(Contents(rank) == std::vector<uint64_t>{2, 1, 2});
  CHECK(Contents(other).empty());  // of one it is not known
}

TEST_CASE("an engine starts paused and needs no pause before its first release", "[lease]") {
  const RealClock clock;
  Rank rank;
  CHECK(rank.lease->state() == EngineLease::State::kUnopened);
  rank.Open();
  LeaseControl control({rank.lease}, clock);
  REQUIRE(control.Pause(kShort).ok());
  CHECK(rank.commands.empty());
  REQUIRE(control.Resume(Version(3)).ok());
  REQUIRE(rank.commands.size() == 1);
  CHECK(std::get<ResumeCommand>(rank.commands[0]).pause_id == 0);
  CHECK(rank.lease->state() == EngineLease::State::kRunning);

  REQUIRE(control.Pause(kLong).ok());
  CHECK(std::get<PauseCommand>(rank.commands[1]).pause_id == 1);
  REQUIRE(control.Resume(Version(4)).ok());
  CHECK(std::get<ResumeCommand>(rank.commands[2]).pause_id == 1);
}

TEST_CASE("an engine has stopped for as long as the rank that stopped last", "[lease]") {
  using std::chrono::milliseconds;
  const RealClock clock;
  Rank early(0);
  Rank late(1);
  for (Rank* rank : {&early, &late}) {
    rank->Open();
    rank->lease->Resume(Version(1));
  }
  early.stopped_for = milliseconds(700);
  late.stopped_for = milliseconds(30);
  LeaseControl control({early.lease, late.lease}, clock);
  REQUIRE(control.Pause(kLong).ok());
  CHECK(control.StoppedFor() == milliseconds(30));
}

TEST_CASE("a pause that is not answered in time fails, and its late answer changes nothing",
          "[lease]") {
  const RealClock clock;
  Rank quick(0);
  Rank slow(1);
  quick.Open();
  slow.Open();
  slow.answers = false;
  LeaseControl control({quick.lease, slow.lease}, clock);
  REQUIRE(control.Resume(Version(1)).ok());
  const Status status = control.Pause(kShort);
  CHECK(absl::IsDeadlineExceeded(status));
  CHECK(Message(status).find("rank 1") != std::string_view::npos);
  CHECK(quick.lease->state() == EngineLease::State::kPaused);

  REQUIRE(control.Resume(Version(1)).ok());
  slow.lease->OnPaused({.pause_id = 1, .generation = Generation(5)});
  CHECK(slow.lease->state() == EngineLease::State::kRunning);
  slow.answers = true;
  CHECK(control.Pause(kLong).ok());
}

TEST_CASE("an engine that disconnects ends the wait for its pause at once", "[lease]") {
  const RealClock clock;
  Rank rank;
  rank.Open();
  rank.lease->Resume(Version(1));
  rank.answers = false;
  std::thread death([&rank] { rank.lease->End(UnavailableError("it hung up")); });
  LeaseControl control({rank.lease}, clock);
  const Status status = control.Pause(kLong);
  death.join();
  CHECK(absl::IsUnavailable(status));
  CHECK(Message(status).find("it hung up") != std::string_view::npos);
  CHECK(rank.ended);
  CHECK_FALSE(rank.lease->Open({}).ok());
}

TEST_CASE("an answer with another generation ends the lease", "[lease]") {
  Rank rank;
  rank.Open();
  rank.lease->Resume(Version(1));
  rank.answers = false;
  rank.lease->RequestPause();
  rank.lease->OnPaused({.pause_id = 1, .generation = Generation(4)});
  CHECK(rank.lease->state() == EngineLease::State::kEnded);
  CHECK(rank.ended);
}

TEST_CASE("a rank that has disconnected ends the wait for another rank at once", "[lease]") {
  const RealClock clock;
  Rank slow(0);
  Rank gone(1);
  for (Rank* rank : {&slow, &gone}) {
    rank->Open();
    rank->lease->Resume(Version(1));
  }
  slow.answers = false;
  gone.lease->End(UnavailableError("it was closed"));
  LeaseControl control({slow.lease, gone.lease}, clock);
  const Status paused = control.Pause(kLong);
  CHECK(absl::IsUnavailable(paused));
  CHECK(Message(paused).find("engine rank 1 is gone") != std::string_view::npos);
}

TEST_CASE("a rank with device memory counts as paused only with its devices drained", "[lease]") {
  EngineLease lease(0, Generation(5), {.drained_devices = true});
  const EngineLease::Stream stream = {.send = [](const LeaseCommand&) {},
                                      .end = [](const Status&) {}};
  const Status undrained = lease.Open(stream);
  CHECK(absl::IsFailedPrecondition(undrained));
  CHECK(Message(undrained).find("opened its lease without having drained") !=
        std::string_view::npos);
  CHECK(lease.state() == EngineLease::State::kUnopened);
  REQUIRE(lease.Open(stream, /*devices_drained=*/true).ok());

  lease.Resume(Version(1));
  lease.RequestPause();
  lease.OnPaused({.pause_id = 1, .generation = Generation(5), .devices_drained = true});
  CHECK(lease.state() == EngineLease::State::kPaused);
  lease.Resume(Version(2));
  lease.RequestPause();
  lease.OnPaused({.pause_id = 2, .generation = Generation(5), .devices_drained = false});
  CHECK(lease.state() == EngineLease::State::kEnded);
}

TEST_CASE("only ranks with a hook run it and its error is reported", "[lease]") {
  const RealClock clock;
  Rank plain(0);
  Rank hooked(1, true);
  plain.Open();
  hooked.Open();
  LeaseControl control({plain.lease, hooked.lease}, clock);
  REQUIRE(control.PostCommit(WeightVersion(2), kLong).ok());
  CHECK(plain.commands.empty());
  CHECK(std::get<PostCommitCommand>(hooked.commands[0]).version == WeightVersion(2));

  hooked.hook_error = "ValueError: no scale";
  const Status status = control.PostCommit(WeightVersion(2), kLong);
  CHECK(absl::IsFailedPrecondition(status));
  CHECK(Message(status).find("ValueError: no scale") != std::string_view::npos);
}

TEST_CASE("a hook's late answer does not count for the next commit's hook", "[lease]") {
  const RealClock clock;
  Rank rank(0, true);
  rank.Open();
  rank.answers = false;
  LeaseControl control({rank.lease}, clock);
  CHECK(absl::IsDeadlineExceeded(control.PostCommit(WeightVersion(6), kShort)));
  const auto late = std::get<PostCommitCommand>(rank.commands.back());

  // Request the next hook; the first one's answer arrives, then the failure of the second.
  rank.lease->RequestPostCommit(WeightVersion(7));
  const auto second = std::get<PostCommitCommand>(rank.commands.back());
  rank.lease->OnPostCommitDone(late.pause_id, "");
  CHECK(absl::IsDeadlineExceeded(rank.lease->AwaitPostCommit(clock.Now() + kShort, clock)));
  rank.lease->OnPostCommitDone(second.pause_id, "no memory");
  CHECK(absl::IsFailedPrecondition(rank.lease->AwaitPostCommit(clock.Now() + kLong, clock)));
}

}  // namespace dws
