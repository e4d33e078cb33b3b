// Commands with one call, against a real gRPC server in this process, over TCP and a unix socket.
#include <stdlib.h>
#include <sys/stat.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "tests/fakes/temp_folder.h"
#include "tests/tools/dwsctl/fake_daemon.h"

namespace dws::dwsctl {

TEST_CASE("status asks the daemon at a TCP address", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  const Ran ran = RunLine("status --address " + daemon.address());
  CHECK(ran.error.empty());
  CHECK(ran.code == ExitCode::kOk);
  CHECK(ran.out.find("committed 12, newest offered -\n") != std::string::npos);
}

TEST_CASE("status connects to the daemon directly and not through the environment's proxy",
          "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  REQUIRE(setenv("http_proxy", "http://127.0.0.1:1", 1) == 0);  // no process listens there
  const Ran ran = RunLine("status --address " + daemon.address());
  REQUIRE(unsetenv("http_proxy") == 0);
  CHECK(ran.error.empty());
  CHECK(ran.code == ExitCode::kOk);
}

TEST_CASE("status asks the daemon at a unix socket", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  const Ran ran = RunLine("status --socket " + (folder.File("receiver.sock")));
  CHECK(ran.error.empty());
  CHECK(ran.code == ExitCode::kOk);
}

TEST_CASE("status finds the only daemon of the run directory", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  CHECK(RunLine("status --run-dir " + folder.path()).code == ExitCode::kOk);
}

TEST_CASE("status asks to choose between two daemons", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon sender(folder.File("sender-0.sock"));
  FakeDaemon receiver(folder.File("receiver.sock"));
  const Ran ran = RunLine("status --run-dir " + folder.path());
  CHECK(ran.code == ExitCode::kUsage);
  CHECK(ran.error.find((folder.File("receiver.sock")) + ", " + (folder.File("sender-0.sock"))) !=
        std::string::npos);
}

TEST_CASE("status --json is the reply with the names of proto/admin.proto", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  const Ran ran = RunLine("status --json --address " + daemon.address());
  REQUIRE(ran.code == ExitCode::kOk);
  const auto json = nlohmann::json::parse(ran.out);
  CHECK(json["daemon"] == "dws-receiver");
  CHECK(json["ready"] == true);
  CHECK(json["receiver"]["committed_version"] == "12");
  CHECK(json["receiver"]["target_version"] == "0");  // unset fields are printed
  CHECK(json["receiver"]["senders"].is_array());
}

TEST_CASE("status of a daemon that is not ready says why and exits with 1", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.reply.set_ready(false);
  daemon.answers.reply.set_reason("no sender connected");
  const Ran ran = RunLine("status --address " + daemon.address());
  CHECK(ran.code == ExitCode::kNotReady);
  CHECK(ran.out.find("not ready: no sender connected") != std::string::npos);
}

TEST_CASE("status of an absent daemon names the socket and exits with 3", "[dwsctl]") {
  TempFolder folder;
  const Ran ran = RunLine("status --socket " + (folder.File("receiver.sock")));
  CHECK(ran.code == ExitCode::kUnreachable);
  CHECK(ran.error.find((folder.File("receiver.sock")) + ": no such socket") != std::string::npos);
}

TEST_CASE("status of an empty run directory says what to start", "[dwsctl]") {
  TempFolder folder;
  const Ran ran = RunLine("status --run-dir " + folder.path());
  CHECK(ran.code == ExitCode::kUnreachable);
  CHECK(ran.error.find("start dws-sender or dws-receiver") != std::string::npos);
}

TEST_CASE("status of a daemon that died names the address and exits with 3", "[dwsctl]") {
  TempFolder folder;
  auto daemon = std::make_unique<FakeDaemon>(folder.File("receiver.sock"));
  const std::string address = daemon->address();
  daemon.reset();
  const Ran ran = RunLine("status --address " + address);
  CHECK(ran.code == ExitCode::kUnreachable);
  CHECK(ran.error.find("no daemon answers at " + address) != std::string::npos);
}

TEST_CASE("an error of the daemon is shown and exits with 4", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.error_code = 3;  // INVALID_ARGUMENT
  daemon.answers.error = "no such thing";
  const Ran ran = RunLine("status --address " + daemon.address());
  CHECK(ran.code == ExitCode::kRefused);
  CHECK(ran.error.find("no such thing") != std::string::npos);
  CHECK(ran.out.empty());
}

TEST_CASE("a wrong address is a wrong command line", "[dwsctl]") {
  CHECK(RunLine("status --address localhost").code == ExitCode::kUsage);
  CHECK(RunLine("status --address :7700").code == ExitCode::kUsage);
  CHECK_THROWS_AS(RunLine("status --address a:1 --socket /b"), CLI::ParseError);
  CHECK_THROWS_AS(RunLine("status --timeout 0"), CLI::ParseError);
}

TEST_CASE("a file that is not a socket is a wrong command line", "[dwsctl]") {
  CHECK(RunLine("status --socket /dev/null").code == ExitCode::kUsage);
}

TEST_CASE("a socket of another user says who may connect", "[dwsctl]") {
  if (geteuid() == 0) return;  // root may
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  REQUIRE(chmod((folder.File("receiver.sock")).c_str(), 0) == 0);
  const Ran ran = RunLine("status --socket " + (folder.File("receiver.sock")));
  CHECK(ran.code == ExitCode::kUnreachable);
  CHECK(ran.error.find("you have no permission to connect to it") != std::string::npos);
}

TEST_CASE("a socket whose name has a percent sign and invalid UTF-8 is used", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  REQUIRE(rename(folder.File("receiver.sock").c_str(), folder.File("a%20\xff #?.sock").c_str()) ==
          0);
  CHECK(RunLine("status --run-dir " + folder.path()).code == ExitCode::kOk);
}

TEST_CASE("an error of the daemon cannot write escapes to the terminal", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  daemon.answers.error_code = 13;
  daemon.answers.error = "\x1b[2Jgone\xff";
  const Ran ran = RunLine("status --address " + daemon.address());
  CHECK(ran.error.find('\x1b') == std::string::npos);
  CHECK(ran.error.find("?[2Jgone") != std::string::npos);
}

TEST_CASE("versions of a sender are a table of its retained versions with the newest first",
          "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("sender.sock"));
  v1::SenderStatus& sender = *daemon.answers.reply.mutable_sender();
  sender.set_newest_version(3);
  for (uint64_t version = 1; version <= 3; ++version) {
    v1::VersionStatus& status = *sender.add_versions();
    status.set_version(version);
    status.set_base_version(version - 1);
    status.set_nnz(83);
    status.set_elements(10'000);
    status.set_wire_bytes(100);
    status.set_full_bytes(20'000);
    status.set_capture_seconds(0.0124);
    status.set_age_seconds(static_cast<double>(10 * (3 - version)));
    status.set_committed(2);
  }
  const Ran ran = RunLine("versions --count 2 --address " + daemon.address());
  CHECK(ran.code == ExitCode::kOk);
  CHECK(ran.out ==
        "  version  base  density   wire  reduced  capture     age  committed\n"
        "        3     2   0.83 %  100 B     200x  12.4 ms    0 us          2\n"
        "        2     1   0.83 %  100 B     200x  12.4 ms  10.0 s          2\n"
        "  and 1 older\n");
  const auto json =
      nlohmann::json::parse(RunLine("versions --json --count 2 --address " + daemon.address()).out);
  CHECK(json["newest_version"] == "3");
  REQUIRE(json["versions"].size() == 2);
  CHECK(json["versions"][0]["version"] == "2");  // ascending, as in the status
  CHECK(json["versions"][1]["wire_bytes"] == "100");
}

TEST_CASE("versions of a receiver are the committed one and those its senders offer", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  v1::ReceiverStatus& receiver = *daemon.answers.reply.mutable_receiver();
  receiver.set_newest_version(14);
  receiver.set_target_version(14);
  receiver.set_stage("fetching");
  receiver.set_stage_done_bytes(512);
  receiver.set_stage_total_bytes(1024);
  receiver.add_senders()->set_address("127.0.0.1:7700");
  const Ran ran = RunLine("versions --address " + daemon.address());
  CHECK(ran.out ==
        "  committed 12\n"
        "  newest    14\n"
        "  target    14, fetching, 50 % of 1.0 KiB\n"
        "\n"
        "  sender          state          rank  newest  delta by  full by\n"
        "  127.0.0.1:7700  not connected     0       -  -         -\n");
  const auto json =
      nlohmann::json::parse(RunLine("versions --json --address " + daemon.address()).out);
  CHECK(json["committed_version"] == "12");
  CHECK(json["target_version"] == "14");
  CHECK(json["senders"][0]["address"] == "127.0.0.1:7700");
}

TEST_CASE("receivers of a sender are listed with their lag and their last error", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("sender.sock"));
  v1::SenderStatus& sender = *daemon.answers.reply.mutable_sender();
  sender.set_newest_version(128);
  v1::ReceiverPeer& peer = *sender.add_receivers();
  peer.set_receiver_id("rollout-0");
  peer.set_present(true);
  peer.set_committed_version(126);
  peer.set_staged_version(127);
  peer.set_fetched_bytes(1024);
  peer.set_pause_seconds(0.0021);
  peer.set_nacks(1);
  peer.set_last_error("digest of 'w' differs");
  const Ran ran = RunLine("receivers --address " + daemon.address());
  CHECK(ran.code == ExitCode::kOk);
  CHECK(ran.out ==
        "  receiver   state    commit  lag  staged  fetched   pause  nacks\n"
        "  rollout-0  present     126    2     127  1.0 KiB  2.1 ms      1\n"
        "    rollout-0: digest of 'w' differs\n");
  const auto json =
      nlohmann::json::parse(RunLine("receivers --json --address " + daemon.address()).out);
  CHECK(json["receivers"][0]["receiver_id"] == "rollout-0");
  CHECK(json["receivers"][0]["nacks"] == "1");

  sender.set_receivers_present(900);
  sender.set_receivers_absent(101);
  CHECK(RunLine("receivers --address " + daemon.address())
            .out.find("\n  and 1000 more; those in trouble, or behind, are listed first\n") !=
        std::string::npos);
  const auto many =
      nlohmann::json::parse(RunLine("receivers --json --address " + daemon.address()).out);
  CHECK(many["receivers_present"] == 900);
  CHECK(many["receivers_absent"] == 101);
}

TEST_CASE("receivers of a receiver are refused with a message", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder.File("receiver.sock"));
  const Ran ran = RunLine("receivers --address " + daemon.address());
  CHECK(ran.code == ExitCode::kRefused);
  CHECK(ran.error.find("is a dws-receiver: it has no receivers") != std::string::npos);
}

}  // namespace dws::dwsctl
