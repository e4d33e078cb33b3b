#include "common/service/grpc/grpc_server.h"

#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>
#include <sys/socket.h>
#include <sys/stat.h>

#include <array>
#include <atomic>
#include <catch2/catch.hpp>
#include <cerrno>
#include <chrono>
#include <memory>
#include <string>
#include <thread>

#include "common/service/grpc/grpc_status.h"
#include "common/service/sockets/unix_socket.h"
#include "proto/admin.grpc.pb.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr const char* kAdmin = "dws.v1.AdminService";

class TestAdmin final : public v1::AdminService::CallbackService {
 public:
  grpc::ServerUnaryReactor* Status(grpc::CallbackServerContext* context, const v1::StatusRequest*,
                                   v1::StatusReply* reply) override {
    ++calls;
    reply->set_daemon("test");
    grpc::ServerUnaryReactor* const reactor = context->DefaultReactor();
    reactor->Finish(grpc::Status::OK);
    return reactor;
  }

  std::atomic<int> calls{0};
};

// Holds its calls until they are cancelled.
class HoldingAdmin final : public v1::AdminService::Service {
 public:
  grpc::Status Status(grpc::ServerContext* context, const v1::StatusRequest*,
                      v1::StatusReply*) override {
    ++open;
    const bool cancelled = Eventually([context] { return context->IsCancelled(); }, seconds(300));
    --open;
    return cancelled ? grpc::Status::CANCELLED : grpc::Status::OK;
  }

  std::atomic<int> open{0};
};

grpc::Status Call(const std::string& target, milliseconds timeout = seconds(20)) {
  const auto channel = grpc::CreateChannel(target, grpc::InsecureChannelCredentials());
  const auto stub = v1::AdminService::NewStub(channel);
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + timeout);
  v1::StatusReply reply;
  return stub->Status(&context, v1::StatusRequest(), &reply);
}

// One request and one reply on a method whose generated code Debian does not ship, as bytes.
grpc::Status RawCall(const std::string& target, const std::string& method,
                     const std::string& request, std::string& reply) {
  grpc::GenericStub stub(grpc::CreateChannel(target, grpc::InsecureChannelCredentials()));
  grpc::CompletionQueue queue;
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + seconds(20));
  const auto call = stub.PrepareCall(&context, method, &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  call->StartCall(nullptr);
  done();
  grpc::Slice slice(request);
  call->WriteLast(grpc::ByteBuffer(&slice, 1), grpc::WriteOptions(), nullptr);
  done();
  grpc::ByteBuffer buffer;
  call->Read(&buffer, nullptr);
  if (done() && buffer.DumpToSingleSlice(&slice).ok()) {
    reply.assign(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  grpc::Status status;
  call->Finish(&status, nullptr);
  done();
  return status;
}

const std::string kPreface = "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const std::string kEmptySettings("\0\0\0\x04\0\0\0\0\0", 9);

// The frame that begins a Status call, which goes on until the message follows.
std::string StatusCallFrame() {
  const auto literal = [](const std::string& text) {
    return static_cast<char>(text.size()) + text;
  };
  const std::string headers = std::string("\x83\x86") +                          // POST, http
                              "\x04" + literal("/dws.v1.AdminService/Status") +  // :path
                              "\x01" + literal("localhost") +                    // :authority
                              "\x0f\x10" + literal("application/grpc") +         // content-type
                              std::string(1, '\0') + literal("te") + literal("trailers");
  const std::string end_headers_of_stream_1("\x01\x04\0\0\0\x01", 6);
  return std::string(2, '\0') + static_cast<char>(headers.size()) + end_headers_of_stream_1 +
         headers;
}

// Reads what has come. False: the server has closed the connection.
bool IsOpen(int fd) {
  std::array<char, 4096> bytes;
  ssize_t size = 0;
  do {
    size = ::recv(fd, bytes.data(), bytes.size(), MSG_DONTWAIT);
  } while (size > 0);
  return size < 0 && errno == EAGAIN;
}

// Makes the server write answers that the client does not read, until it can write no more.
void SendUntilStuck(int fd) {
  const std::string ping("\0\0\x08\x06\0\0\0\0\0 8 bytes", 17);
  const auto send_soon = [fd](const std::string& bytes) {
    return Eventually(
        [&] { return ::send(fd, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL) > 0; },
        seconds(2));
  };
  REQUIRE(send_soon(kPreface + kEmptySettings));
  constexpr int kPingsMax = 1'000'000;
  int pings = 0;
  while (pings < kPingsMax && send_soon(ping)) ++pings;
  REQUIRE(pings < kPingsMax);
}

enum Health { kServing = 1, kNotServing = 2, kUnknown = 3 };

// HealthCheckRequest{service = 1} -> HealthCheckResponse{status = 1}.
Health CheckHealth(const std::string& target, const std::string& service) {
  std::string reply;
  const grpc::Status status =
      RawCall(target, "/grpc.health.v1.Health/Check",
              std::string("\x0a") + static_cast<char>(service.size()) + service, reply);
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return kUnknown;
  REQUIRE(status.ok());
  REQUIRE(reply.size() == 2);
  return static_cast<Health>(reply[1]);
}

GrpcServer::Options OptionsFor(grpc::Service& admin, Lifecycle& lifecycle) {
  return {.unix_socket = "",
          .listen = "",
          .insecure = true,
          .services = {{.name = kAdmin, .service = &admin}},
          .lifecycle = &lifecycle};
}

TEST_CASE("a status message is shortened to fit its header", "[grpc]") {
  const auto sent = [](const std::string& message) {
    return ToGrpc(InternalError("{}", message)).error_message();
  };
  CHECK(sent(std::string(4096, 'x')) == std::string(4096, 'x'));
  CHECK(sent(std::string(4097, 'x')) == std::string(4096, 'x') + " ... (shortened)");
  std::string umlauts;  // two bytes each, six in a header
  for (int i = 0; i < 1000; ++i) umlauts += "\xc3\xbc";
  CHECK(sent(umlauts) == umlauts.substr(0, 4096 / 6 * 2) + " ... (shortened)");
  CHECK(sent("100 %") == "100 %");
  CHECK(ToGrpc(OkStatus()).ok());
  // gRPC gives no message for an unknown service.
  CHECK(Message(FromGrpc({grpc::StatusCode::UNIMPLEMENTED, ""})) == "UNIMPLEMENTED");
}

TEST_CASE("a server answers on its socket file and on its port", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  TestAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  options.unix_socket = folder.File("sock");
  options.listen = "127.0.0.1:0";
  auto server = GrpcServer::Start(options);
  REQUIRE(server.ok());
  REQUIRE((*server)->port().value_or(0) != 0);
  CHECK(Call(fmt::format("127.0.0.1:{}", *(*server)->port())).ok());
  CHECK(Call("unix:" + folder.File("sock")).ok());
  CHECK(admin.calls == 2);
  struct stat found = {};
  REQUIRE(::stat(folder.File("sock").c_str(), &found) == 0);
  CHECK((found.st_mode & 0777) == 0660);
}

TEST_CASE("one service may be served by two servers, on a socket and on a port", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  TestAdmin admin;
  GrpcServer::Options local = OptionsFor(admin, lifecycle);
  local.unix_socket = folder.File("sock");
  GrpcServer::Options remote = OptionsFor(admin, lifecycle);
  remote.listen = "127.0.0.1:0";
  auto first = GrpcServer::Start(local);
  auto second = GrpcServer::Start(remote);
  REQUIRE(first.ok());
  REQUIRE(second.ok());
  CHECK_FALSE((*first)->port().has_value());
  CHECK(Call("unix:" + folder.File("sock")).ok());
  CHECK(Call(fmt::format("127.0.0.1:{}", *(*second)->port())).ok());
}

TEST_CASE("health is SERVING exactly while the daemon is ready", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  TestAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  options.unix_socket = folder.File("sock");
  auto server = GrpcServer::Start(options);
  REQUIRE(server.ok());
  const std::string target = "unix:" + folder.File("sock");
  for (const std::string service : {"", kAdmin}) {
    lifecycle.SetNotReady("starting again");
    CHECK(CheckHealth(target, service) == kNotServing);
    lifecycle.SetReady();
    CHECK(CheckHealth(target, service) == kServing);
  }
  CHECK(CheckHealth(target, "dws.v1.Unknown") == kUnknown);
  lifecycle.SetStopping();
  lifecycle.SetReady();  // too late
  for (const std::string service : {"", kAdmin}) CHECK(CheckHealth(target, service) == kNotServing);
}

// A trainer calls once a step, which may take minutes, and answers nothing in between.
TEST_CASE("a client of the socket file is cut off for silence only while it has a call", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  HoldingAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  options.unix_socket = folder.File("sock");
  auto server = GrpcServer::Start(options);
  REQUIRE(server.ok());
  const auto idle = ConnectUnix(folder.File("sock"));
  const auto calling = ConnectUnix(folder.File("sock"));
  REQUIRE((idle.ok() && calling.ok()));
  const auto say = [](const UniqueFd& fd, const std::string& bytes) {
    return ::send(fd.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  };
  REQUIRE(say(idle->fd, kPreface + kEmptySettings));
  REQUIRE(say(calling->fd, kPreface + kEmptySettings + StatusCallFrame()));
  CHECK(Eventually([&] { return !IsOpen(calling->fd.get()); }, 2 * limits::kKeepaliveTimeout));
  CHECK_FALSE(Eventually([&] { return !IsOpen(idle->fd.get()); }, limits::kKeepaliveInterval));
}

TEST_CASE("server reflection lists the services", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  TestAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  options.unix_socket = folder.File("sock");
  auto server = GrpcServer::Start(options);
  REQUIRE(server.ok());
  // ServerReflectionRequest{list_services = 7}.
  std::string reply;
  REQUIRE(RawCall("unix:" + folder.File("sock"),
                  "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo", "\x3a\x01*",
                  reply)
              .ok());
  CHECK_THAT(reply, Catch::Contains(kAdmin) && Catch::Contains("grpc.health.v1.Health"));
}

TEST_CASE("an address without TLS is refused without --insecure even on loopback", "[grpc]") {
  Lifecycle lifecycle;
  TestAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  CHECK(absl::IsInvalidArgument(GrpcServer::Start(options).status()));
  for (const char* address : {"127.0.0.1:0", "0.0.0.0:0"}) {
    options.listen = address;
    options.insecure = false;
    const Status refused = GrpcServer::Start(options).status();
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK_THAT(std::string(Message(refused)), Catch::Contains("--insecure"));
    options.insecure = true;
    CHECK(GrpcServer::Start(options).ok());
  }
}

TEST_CASE("orders are accepted on the socket file and never on a plain port", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  TestAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  options.unix_socket = folder.File("sock");
  options.listen = "127.0.0.1:0";
  auto server = GrpcServer::Start(options);
  REQUIRE(server.ok());
  lifecycle.SetReady();
  const std::string port = fmt::format("127.0.0.1:{}", *(*server)->port());
  const std::string socket = "unix:" + folder.File("sock");
  std::string reply;
  for (const char* order : {"Verify", "Resync", "Drain", "Evict", "Boundary"}) {
    INFO(order);
    const std::string method = fmt::format("/dws.v1.AdminService/{}", order);
    const grpc::Status refused = RawCall(port, method, "", reply);
    CHECK(refused.error_code() == grpc::StatusCode::PERMISSION_DENIED);
    CHECK_THAT(refused.error_message(), Catch::Contains("unix socket") && Catch::Contains("TLS"));
    // TestAdmin, which has none of these methods, answers UNIMPLEMENTED: the call was let through.
    CHECK(RawCall(socket, method, "", reply).error_code() == grpc::StatusCode::UNIMPLEMENTED);
  }
  CHECK(Call(port).ok());
  CHECK(CheckHealth(port, kAdmin) == kServing);
  const grpc::Status unknown = RawCall(port, "/dws.v1.TrainerService/Register", "", reply);
  CHECK(unknown.error_code() == grpc::StatusCode::UNIMPLEMENTED);
}

TEST_CASE("two servers cannot share a port or a socket file", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  TestAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  options.unix_socket = folder.File("sock");
  options.listen = "127.0.0.1:0";
  auto server = GrpcServer::Start(options);
  REQUIRE(server.ok());

  GrpcServer::Options same_port = OptionsFor(admin, lifecycle);
  same_port.listen = fmt::format("127.0.0.1:{}", *(*server)->port());
  CHECK(absl::IsUnavailable(GrpcServer::Start(same_port).status()));
  GrpcServer::Options same_socket = OptionsFor(admin, lifecycle);
  same_socket.unix_socket = folder.File("sock");
  CHECK(absl::IsFailedPrecondition(GrpcServer::Start(same_socket).status()));
  CHECK(Call("unix:" + folder.File("sock")).ok());
}

TEST_CASE("shutdown takes bounded time and cancels calls that do not end", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  HoldingAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  options.unix_socket = folder.File("sock");
  auto server = GrpcServer::Start(options);
  REQUIRE(server.ok());
  grpc::Status ended;  // read after the join: Catch's checks belong to one thread
  std::thread calling([&] { ended = Call("unix:" + folder.File("sock"), seconds(300)); });
  REQUIRE(Eventually([&] { return admin.open == 1; }));
  const auto begin = std::chrono::steady_clock::now();
  (*server)->Shutdown(milliseconds(50));
  CHECK(std::chrono::steady_clock::now() - begin < seconds(20));
  calling.join();
  CHECK_FALSE(ended.ok());
  CHECK(admin.open == 0);
  (*server)->Shutdown();
  CHECK_FALSE(Call("unix:" + folder.File("sock"), milliseconds(200)).ok());
  // A listener that was not removed would call into the destroyed server.
  server->reset();
  lifecycle.SetReady();
}

TEST_CASE("shutdown does not wait for a client that reads nothing", "[grpc]") {
  TempFolder folder;
  Lifecycle lifecycle;
  TestAdmin admin;
  GrpcServer::Options options = OptionsFor(admin, lifecycle);
  options.unix_socket = folder.File("sock");
  auto server = GrpcServer::Start(options);
  REQUIRE(server.ok());
  auto client = ConnectUnix(folder.File("sock"));
  REQUIRE(client.ok());
  SendUntilStuck(client->fd.get());
  std::atomic<bool> ended{false};
  std::thread stopping([&] {
    (*server)->Shutdown(milliseconds(50));
    ended = true;
  });
  CHECK(Eventually([&] { return ended.load(); }));
  client->fd.reset();
  stopping.join();
}

}  // namespace
}  // namespace dws
