// StreamLink against a peer that accepts connections and sends nothing.
#include "common/service/peers/stream_link.h"

#include <arpa/inet.h>
#include <grpcpp/grpcpp.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>

#include "common/base/unique_fd.h"
#include "proto/sync.grpc.pb.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/jumping_clock.h"

namespace dws {
namespace {

struct Silent {
  Silent() : fd(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = ::htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(fd.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(fd.get(), 4) == 0);
    REQUIRE(::getsockname(fd.get(), reinterpret_cast<sockaddr*>(&address), &size) == 0);
    target = "127.0.0.1:" + std::to_string(::ntohs(address.sin_port));
  }
  UniqueFd fd;
  std::string target;
};

}  // namespace

TEST_CASE("a stream that is dropped while it opens ends with the reason", "[sync]") {
  using Link = StreamLink<v1::SyncUp, v1::SyncDown>;
  Silent peer;
  const auto stub = v1::SyncService::NewStub(
      grpc::CreateChannel(peer.target, grpc::InsecureChannelCredentials()));
  JumpingClock clock;
  Mutex mutex;
  std::optional<Status> done;
  std::unique_ptr<Link> link;
  link = std::make_unique<Link>(
      4, clock,
      Link::Callbacks{
          .prepare = [] { return OkStatus(); },
          .open = [&](auto* context, auto* reactor) { stub->async()->Sync(context, reactor); },
          .hello =
              [&] {
                link->Drop(UnavailableError("the stream was forgotten"));
                return v1::SyncUp();
              },
          .on_message = [](const auto&, const v1::SyncDown&, const Peer&,
                           bool) { return OkStatus(); },
          .on_done =
              [&](const Status& reason, bool) {
                MutexLock lock(mutex);
                done = reason;
              }});
  REQUIRE(link->Tick() == LinkState::Step::kConnect);
  const auto reason = [&] {
    MutexLock lock(mutex);
    return done;
  };
  CHECK(Eventually([&] { return reason().has_value(); }, std::chrono::seconds(5)));
  link->Stop();
  CHECK(Message(*reason()) == "the stream was forgotten");
}

}  // namespace dws
