// `dwsctl status` against a real gRPC server in this process, over TCP and over a unix socket.
#include "tools/dwsctl/status_command.h"

#include <grpcpp/grpcpp.h>
#include <stdlib.h>

#include <CLI/CLI.hpp>
#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>

#include "proto/admin.grpc.pb.h"

namespace dws::dwsctl {
namespace {

class TempFolder {
 public:
  TempFolder() {
    char path[] = "/tmp/dwsctl_test.XXXXXX";
    REQUIRE(mkdtemp(path) != nullptr);
    path_ = path;
  }
  ~TempFolder() { std::filesystem::remove_all(path_); }
  std::string operator/(const std::string& name) const { return path_ + "/" + name; }
  const std::string& path() const { return path_; }

 private:
  std::string path_;
};

// Answers with `reply`, or with `error` when that is set.
class FakeAdmin final : public v1::AdminService::Service {
 public:
  grpc::Status Status(grpc::ServerContext*, const v1::StatusRequest*,
                      v1::StatusReply* answer) override {
    *answer = reply;
    return error;
  }
  v1::StatusReply reply;
  grpc::Status error;
};

class FakeDaemon {
 public:
  explicit FakeDaemon(const std::string& socket) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.AddListeningPort("unix:" + socket, grpc::InsecureServerCredentials());
    builder.RegisterService(&admin);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    admin.reply.set_daemon("dws-receiver");
    admin.reply.set_ready(true);
    admin.reply.mutable_receiver()->set_committed_version(12);
  }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }
  FakeAdmin admin;

 private:
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

// What main does with a command line.
Outcome RunLine(const std::string& line) {
  CLI::App app;
  Outcome outcome{.code = ExitCode::kUsage, .out = "", .error = "no command ran"};
  AddStatusCommand(app, outcome);
  app.parse(line);
  return outcome;
}

}  // namespace

TEST_CASE("status asks the daemon at a TCP address", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder / "receiver.sock");
  const Outcome outcome = RunLine("status --address " + daemon.address());
  CHECK(outcome.error.empty());
  CHECK(outcome.code == ExitCode::kOk);
  CHECK(outcome.out.find("committed 12\n") != std::string::npos);
}

TEST_CASE("status asks the daemon directly, not the proxy of the environment", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder / "receiver.sock");
  REQUIRE(setenv("http_proxy", "http://127.0.0.1:1", 1) == 0);  // nobody listens there
  const Outcome outcome = RunLine("status --address " + daemon.address());
  REQUIRE(unsetenv("http_proxy") == 0);
  CHECK(outcome.error.empty());
  CHECK(outcome.code == ExitCode::kOk);
}

TEST_CASE("status asks the daemon at a unix socket", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder / "receiver.sock");
  const Outcome outcome = RunLine("status --socket " + (folder / "receiver.sock"));
  CHECK(outcome.error.empty());
  CHECK(outcome.code == ExitCode::kOk);
}

TEST_CASE("status finds the only daemon of the run directory", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder / "receiver.sock");
  CHECK(RunLine("status --run-dir " + folder.path()).code == ExitCode::kOk);
}

TEST_CASE("status asks to choose between two daemons", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon sender(folder / "sender-0.sock");
  FakeDaemon receiver(folder / "receiver.sock");
  const Outcome outcome = RunLine("status --run-dir " + folder.path());
  CHECK(outcome.code == ExitCode::kUsage);
  CHECK(outcome.error.find((folder / "receiver.sock") + ", " + (folder / "sender-0.sock")) !=
        std::string::npos);
}

TEST_CASE("status --json is the reply with the names of proto/admin.proto", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder / "receiver.sock");
  const Outcome outcome = RunLine("status --json --address " + daemon.address());
  REQUIRE(outcome.code == ExitCode::kOk);
  const auto json = nlohmann::json::parse(outcome.out);
  CHECK(json["daemon"] == "dws-receiver");
  CHECK(json["ready"] == true);
  CHECK(json["receiver"]["committed_version"] == "12");
  CHECK(json["receiver"]["target_version"] == "0");  // unset fields are there
  CHECK(json["receiver"]["senders"].is_array());
}

TEST_CASE("status of a daemon that is not ready says why and exits with 1", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder / "receiver.sock");
  daemon.admin.reply.set_ready(false);
  daemon.admin.reply.set_reason("no sender connected");
  const Outcome outcome = RunLine("status --address " + daemon.address());
  CHECK(outcome.code == ExitCode::kNotReady);
  CHECK(outcome.out.find("not ready: no sender connected") != std::string::npos);
}

TEST_CASE("status of an absent daemon names the socket and exits with 3", "[dwsctl]") {
  TempFolder folder;
  const Outcome outcome = RunLine("status --socket " + (folder / "receiver.sock"));
  CHECK(outcome.code == ExitCode::kUnreachable);
  CHECK(outcome.error.find((folder / "receiver.sock") + ": no such socket") != std::string::npos);
}

TEST_CASE("status of an empty run directory says what to start", "[dwsctl]") {
  TempFolder folder;
  const Outcome outcome = RunLine("status --run-dir " + folder.path());
  CHECK(outcome.code == ExitCode::kUnreachable);
  CHECK(outcome.error.find("start dws-sender or dws-receiver") != std::string::npos);
}

TEST_CASE("status of a daemon that died names the address and exits with 3", "[dwsctl]") {
  TempFolder folder;
  auto daemon = std::make_unique<FakeDaemon>(folder / "receiver.sock");
  const std::string address = daemon->address();
  daemon.reset();
  const Outcome outcome = RunLine("status --address " + address);
  CHECK(outcome.code == ExitCode::kUnreachable);
  CHECK(outcome.error.find("no daemon answers at " + address) != std::string::npos);
}

TEST_CASE("an error of the daemon is shown and exits with 4", "[dwsctl]") {
  TempFolder folder;
  FakeDaemon daemon(folder / "receiver.sock");
  daemon.admin.error = grpc::Status(grpc::StatusCode::INVALID_ARGUMENT, "no such thing");
  const Outcome outcome = RunLine("status --address " + daemon.address());
  CHECK(outcome.code == ExitCode::kRefused);
  CHECK(outcome.error.find("no such thing") != std::string::npos);
  CHECK(outcome.out.empty());
}

TEST_CASE("a wrong address is a wrong command line", "[dwsctl]") {
  CHECK(RunLine("status --address localhost").code == ExitCode::kUsage);
  CHECK(RunLine("status --address :7700").code == ExitCode::kUsage);
  CHECK_THROWS_AS(RunLine("status --address a:1 --socket /b"), CLI::ParseError);
  CHECK_THROWS_AS(RunLine("status --timeout 0"), CLI::ParseError);
}

TEST_CASE("a file that is no socket is a wrong command line", "[dwsctl]") {
  CHECK(RunLine("status --socket /dev/null").code == ExitCode::kUsage);
}

}  // namespace dws::dwsctl
