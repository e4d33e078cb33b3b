// Commands whose answers are streams, against a real gRPC server in this process.
#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <sstream>

#include "tests/fakes/temp_folder.h"
#include "tests/tools/dwsctl/fake_daemon.h"

namespace dws::dwsctl {
namespace {

v1::OperationProgress Progress(const std::string& step, uint64_t done, bool finished) {
  v1::OperationProgress progress;
  progress.set_step(step);
  progress.set_done_bytes(done);
  progress.set_total_bytes(2048);
  progress.set_version(12);
  progress.set_finished(finished);
  return progress;
}

std::vector<nlohmann::json> JsonLines(const std::string& text) {
  std::vector<nlohmann::json> objects;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    objects.push_back(nlohmann::json::parse(line));
  }
  return objects;
}

}  // namespace

TEST_CASE("verify prints what was compared and its steps", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("comparing", 1024, false), Progress("comparing", 1500, false),
                             Progress("done", 2048, true)};
  const Ran ran = RunLine("verify --address " + daemon.address());
  CHECK(ran.code == ExitCode::kOk);
  CHECK(ran.out == "rollout-0: 2.0 KiB of weights compared, all as published at version 12\n");
  CHECK(ran.error == "comparing\ndone\n");
}

TEST_CASE("verify of weights that differ lists them and exits with 5", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  v1::OperationProgress last = Progress("done", 2048, true);
  last.set_mismatches(3);
  for (uint32_t slice = 0; slice < 2; ++slice) {
    v1::SliceMismatch& mismatch = *last.add_mismatched();
    mismatch.set_tensor("layer.weight");
    mismatch.set_rank_slice(slice);
    mismatch.set_version(12);
    mismatch.mutable_expected()->set_lane0(0xABC);
    if (slice == 0) mismatch.mutable_found()->set_lane0(0xDEF);
  }
  daemon.answers.progress = {last};
  const Ran ran = RunLine("verify --address " + daemon.address());
  CHECK(ran.code == ExitCode::kMismatch);
  CHECK(ran.out ==
        "rollout-0: 3 slices differ from what was published, compared at version 12; the receiver "
        "takes them in full by itself, `dwsctl watch` shows it\n"
        "  tensor        rank  slice  version  expected          found\n"
        "  layer.weight     0      0       12  0000000000000abc  0000000000000def\n"
        "  layer.weight     0      1       12  0000000000000abc  ranks differ\n"
        "  and 1 more\n");
  CHECK(RunLine("verify --json --address " + daemon.address()).code == ExitCode::kMismatch);
}

TEST_CASE("operations print every message as a line of JSON", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("comparing", 1024, false), Progress("done", 2048, true)};
  for (const std::string command : {"verify", "resync", "drain", "evict --member 1"}) {
    const Ran ran = RunLine(command + " --json --address " + daemon.address());
    INFO(command);
    CHECK(ran.code == ExitCode::kOk);
    CHECK(ran.error.empty());
    const auto objects = JsonLines(ran.out);
    REQUIRE(objects.size() == 2);
    CHECK(objects[0]["finished"] == false);
    CHECK(objects[1]["finished"] == true);
    CHECK(objects[1]["done_bytes"] == "2048");
    CHECK(objects[1]["mismatched"].is_array());
  }
}

TEST_CASE("resync passes its flag and reports the version", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("", 2048, true)};
  const Ran ran = RunLine("resync --address " + daemon.address());
  CHECK(ran.out == "rollout-0: in step with the senders at version 12, 2.0 KiB checked\n");
  CHECK_FALSE(daemon.answers.resync.full());
  RunLine("resync --full --address " + daemon.address());
  CHECK(daemon.answers.resync.full());
}

TEST_CASE("drain waits or not or undoes as its flags say and explains the result", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("waiting", 0, false), Progress("drained", 0, true)};
  const Ran waited = RunLine("drain --address " + daemon.address());
  CHECK(waited.code == ExitCode::kOk);
  CHECK(waited.out.starts_with("rollout-0: drained at version 12, nothing is in flight;"));

  daemon.answers.progress.pop_back();
  daemon.answers.hang = true;
  const Ran begun = RunLine("drain --no-wait --address " + daemon.address());
  CHECK(begun.code == ExitCode::kOk);
  CHECK(begun.out == "rollout-0: draining; `dwsctl status` says when it is done\n");

  daemon.answers.hang = false;
  daemon.answers.progress = {Progress("", 0, true)};
  for (const std::string command : {"undrain", "drain --undo"}) {
    daemon.answers.drain.Clear();
    const Ran undone = RunLine(command + " --address " + daemon.address());
    CHECK(undone.out == "rollout-0: the drain has ended\n");
    CHECK(daemon.answers.drain.undo());
  }
}

TEST_CASE("forget-stream sends the stream or asks the daemon which one it has", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("forgotten", 0, true)};
  const std::string stream = "18446744073709551615:00000000000000010000000000000002";
  const Ran ran = RunLine("forget-stream --stream " + stream + " --address " + daemon.address());
  CHECK(ran.code == ExitCode::kOk);
  CHECK(
      ran.out.starts_with("rollout-0: stream " + stream + " is forgotten; its engine runs again"));
  CHECK(daemon.answers.forget.stream().incarnation() == ~uint64_t{0});
  CHECK(daemon.answers.forget.stream().id_hi() == 1);
  CHECK(daemon.answers.forget.stream().id_lo() == 2);
  for (const std::string wrong :
       {"7", "7:12", "x:00000000000000010000000000000002", "7:0000000000000001000000000000000g"}) {
    CHECK_THROWS_WITH(RunLine("forget-stream --stream " + wrong),
                      Catch::Contains("expected INCARNATION:ID"));
  }
  daemon.answers.progress.clear();
  const Ran asked = RunLine("forget-stream --address " + daemon.address());
  CHECK(asked.code == ExitCode::kRefused);
  CHECK(daemon.answers.calls == 2);
  CHECK(daemon.answers.forget.stream().incarnation() == 0);
  daemon.answers.error_code = 9;
  daemon.answers.error = "stream 7:... is recorded here";
  CHECK_THAT(RunLine("forget-stream --address " + daemon.address()).error,
             Catch::Contains("is recorded here"));
}

TEST_CASE("boundary says what the daemon did and which version the engine has", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("waiting for the commit of the held version", 0, false),
                             Progress("the held version is committed", 0, true)};
  daemon.answers.progress.back().set_version(13);
  const Ran ran = RunLine("boundary --address " + daemon.address());
  CHECK(ran.code == ExitCode::kOk);
  CHECK(ran.out == "rollout-0: the held version is committed, the engine has version 13\n");
  CHECK_THAT(ran.error, Catch::Contains("waiting for the commit of the held version"));
  daemon.answers.progress.clear();
  daemon.answers.error_code = 9;
  daemon.answers.error = "--commit-policy is immediate: nothing is held back";
  const Ran refused = RunLine("boundary --address " + daemon.address());
  CHECK(refused.code == ExitCode::kRefused);
  CHECK_THAT(refused.error, Catch::Contains("nothing is held back"));
}

TEST_CASE("evict sends the member and the reason", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("", 0, true)};
  const Ran ran = RunLine("evict --member 2 --reason burnt --address " + daemon.address());
  CHECK(ran.code == ExitCode::kOk);
  CHECK(ran.out.starts_with("rollout-0: member 2 is evicted, the engine of its commit group has"));
  CHECK(daemon.answers.evict.member_index() == 2);
  CHECK(daemon.answers.evict.reason() == "burnt");
  CHECK(RunLine("evict --address " + daemon.address()).code == ExitCode::kUsage);
  CHECK_THROWS(RunLine("evict --member 2 --receiver r --address " + daemon.address()));
  CHECK_THROWS_WITH(RunLine("evict --member 2 --reason \xff --address " + daemon.address()),
                    Catch::Contains("is not UTF-8"));
}

TEST_CASE("evict sends the id of a sender's absent receiver", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("sender.sock"));
  daemon.answers.progress = {Progress("", 0, true)};
  const Ran ran = RunLine("evict --receiver rollout-3 --address " + daemon.address());
  CHECK(ran.code == ExitCode::kOk);
  CHECK(daemon.answers.evict.receiver_id() == "rollout-3");
  CHECK(ran.out.find("receiver rollout-3 is forgotten, nothing waits for it\n") !=
        std::string::npos);
  CHECK(RunLine("evict --receiver r --address " + daemon.address()).code == ExitCode::kOk);
  // If it is sent to a group's leader by mistake, the leader has no such member.
  CHECK(daemon.answers.evict.member_index() == std::numeric_limits<uint32_t>::max());
}

TEST_CASE("an operation that the daemon refuses exits with 4 and its reason", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("sender.sock"));
  daemon.answers.reply.mutable_sender();
  daemon.answers.progress = {};
  daemon.answers.error_code = 9;
  daemon.answers.error = "a sender has nothing to resync";
  const Ran ran = RunLine("resync --address " + daemon.address());
  CHECK(ran.code == ExitCode::kRefused);
  CHECK(ran.error.find("a sender has nothing to resync") != std::string::npos);
  CHECK(ran.out.empty());
}

TEST_CASE("an operation that ends without a result is an error", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("comparing", 1024, false)};
  const Ran ran = RunLine("verify --address " + daemon.address());
  CHECK(ran.code == ExitCode::kRefused);
  CHECK(ran.error.find("without a result") != std::string::npos);
}

TEST_CASE("an operation times out when the daemon sends nothing", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.progress = {Progress("comparing", 1024, false)};
  daemon.answers.hang = true;
  const Ran ran = RunLine("drain --timeout 2 --address " + daemon.address());
  CHECK(ran.code == ExitCode::kUnreachable);
  CHECK(ran.error.find("sent nothing for 2000 ms") != std::string::npos);
  CHECK(ran.error.find("continues draining") != std::string::npos);
}

TEST_CASE("watch --count prints that many lines of each daemon", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon receiver(folder.File("receiver.sock"));
  FakeDaemon sender(folder.File("sender-0.sock"));
  sender.answers.reply.mutable_sender()->set_trainer_present(true);
  const Ran ran = RunLine("watch --count 2 --run-dir " + folder.path());
  CHECK(ran.code == ExitCode::kOk);
  size_t receivers = 0;
  size_t senders = 0;
  std::istringstream lines(ran.out);
  for (std::string line; std::getline(lines, line);) {
    receivers += line.starts_with("rollout-0: version 12, lag 0") ? 1 : 0;
    senders += line.starts_with("sender 0: version -") ? 1 : 0;
  }
  CHECK(receivers == 2);
  CHECK(senders == 2);
}

TEST_CASE("watch --once --json names each daemon with its status or error", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  const Ran ran = RunLine("watch --once --json --address " + daemon.address() + " --socket " +
                          folder.File("absent.sock"));
  CHECK(ran.code == ExitCode::kUnreachable);
  const auto objects = JsonLines(ran.out);
  REQUIRE(objects.size() == 2);
  for (const auto& object : objects) {
    if (object["target"] == daemon.address()) {
      CHECK(object["status"]["receiver"]["committed_version"] == "12");
    } else {
      CHECK(object["target"] == folder.File("absent.sock"));
      CHECK(object["error"].get<std::string>().find("no daemon answers") != std::string::npos);
    }
  }
}

TEST_CASE("watch --once of a daemon that is not ready exits with 1", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.reply.set_ready(false);
  daemon.answers.reply.set_reason("no sender connected");
  const Ran ran = RunLine("watch --once --address " + daemon.address());
  CHECK(ran.code == ExitCode::kNotReady);
  CHECK(ran.out.find("not ready: no sender connected") != std::string::npos);
}

TEST_CASE("watch connects again after the daemon has ended the call", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  // Each call ends after three statuses: the fourth event reports that, later ones are statuses.
  const Ran ran = RunLine("watch --count 6 --json --address " + daemon.address());
  CHECK(ran.code == ExitCode::kOk);
  const auto objects = JsonLines(ran.out);
  REQUIRE(objects.size() == 6);
  CHECK(objects[3]["error"].get<std::string>().find("ended the call") != std::string::npos);
  CHECK(objects[5].contains("status"));
}

TEST_CASE("watch without a daemon or with wrong flags is an error", "[dwsctl]") {
  TempFolder folder;
  CHECK(RunLine("watch --once --run-dir " + folder.path()).code == ExitCode::kUnreachable);
  CHECK(RunLine("watch --once --address localhost").code == ExitCode::kUsage);
  CHECK_THROWS_AS(RunLine("watch --interval 0.01"), CLI::ParseError);
  CHECK_THROWS_AS(RunLine("watch --once --count 2"), CLI::ParseError);
}

}  // namespace dws::dwsctl
