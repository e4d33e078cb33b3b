// What every transport from a sender to a receiver promises, tested on each.
#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <thread>

#include "common/transport/fabric/fabric_api.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/grpc_transport.h"

namespace dws {
namespace {

// A connection, and by which source full tensors come over it; or no connection.
constexpr const char* kDirectory = "shared-dir";

std::unique_ptr<Transport> MakeTransport(const std::string& kind, size_t anchor_every = 32) {
  if (kind == kDirectory) return std::make_unique<SharedTransport>(anchor_every);
  return std::make_unique<GrpcTransport>(kind);
}

// As MakeTransport, and what its source cannot bring comes over the connection.
std::unique_ptr<Transport> MakeMixed(const std::string& kind) {
  if (kind == "same-host") return std::make_unique<GrpcTransport>(Ways{});
  if (kind != "fabric") return MakeTransport(kind);
  auto transport =
      std::make_unique<GrpcTransport>(Ways{.fabric = {.on = true, .only = FabricProvider::kTcp}});
  transport->CloseHandleSocket();  // else they would come from the same host
  return transport;
}

// With a whole sender and receiver ThreadSanitizer reports gRPC's own threads, which are
// not instrumented: unit tests run the parts of this transport under it.
std::string EachKind() {
#if defined(__SANITIZE_THREAD__)
  return kDirectory;
#else
  const std::string kind = GENERATE(as<std::string>{}, "grpc", "same-host", "fabric", kDirectory);
  if (kind != "fabric") return kind;
  const auto installed = FabricApi::Load();
  if (installed.ok()) return kind;
  WARN("skipped: " << Message(installed.status()));
  return "grpc";
#endif
}

void Publish(Rank& rank, Transport& transport, uint64_t version) {
  rank.Publish(version);
  transport.Published();
}

bool HubHas(Transport& transport, uint64_t committed) {
  return Eventually([&] {
    if (auto* shared = dynamic_cast<SharedTransport*>(&transport)) shared->folder().Work();
    const auto receivers = transport.hub().Receivers();
    const auto found = receivers.find("r0");
    return found != receivers.end() && found->second.connection.has_value() &&
           found->second.committed == WeightVersion(committed);
  });
}

}  // namespace

TEST_CASE("every version arrives bit for bit and its commit is reported to the sender",
          "[conformance]") {
  const std::string kind = EachKind();
  INFO(kind);
  Rank rank;
  const auto transport = MakeTransport(kind, 3);
  transport->Registered(rank.state());
  Publish(rank, *transport, 1);
  transport->StartReceiver();
  Follower follower(rank.layout());
  for (uint64_t version = 1; version <= 5; ++version) {
    if (version > 1) Publish(rank, *transport, version);
    CHECK(follower.Follow(transport->group(), transport->subscription(), version) ==
          (version == 1 ? "full" : "delta"));
    CHECK((follower.weights() == rank.At(version)));
  }
  CHECK(HubHas(*transport, 5));
  CHECK(transport->hub().Receivers()["r0"].last_commit.pause_seconds == 0.25);
}

TEST_CASE("a late joiner fetches the newest version in full", "[conformance]") {
  const std::string kind = EachKind();
  INFO(kind);
  Rank rank;
  const auto transport = MakeTransport(kind);
  transport->Registered(rank.state());
  for (uint64_t version = 1; version <= 4; ++version) Publish(rank, *transport, version);
  transport->StartReceiver();
  Follower follower(rank.layout());
  CHECK(follower.Follow(transport->group(), transport->subscription(), 4) == "full");
  CHECK((follower.weights() == rank.At(4)));
}

TEST_CASE("a lagging receiver gets several versions as one delta", "[conformance]") {
  const std::string kind = EachKind();
  INFO(kind);
  Rank rank;
  const auto transport = MakeTransport(kind);
  transport->Registered(rank.state());
  Publish(rank, *transport, 1);
  transport->StartReceiver();
  Follower follower(rank.layout());
  CHECK(follower.Follow(transport->group(), transport->subscription(), 1) == "full");
  for (uint64_t version = 2; version <= 6; ++version) Publish(rank, *transport, version);
  CHECK(follower.Follow(transport->group(), transport->subscription(), 6) == "delta");
  CHECK((follower.weights() == rank.At(6)));
}

TEST_CASE("a restarted receiver continues with a delta from its version", "[conformance]") {
  const std::string kind = EachKind();
  INFO(kind);
  Rank rank;
  const auto transport = MakeTransport(kind);
  transport->Registered(rank.state());
  Publish(rank, *transport, 1);
  transport->StartReceiver();
  Follower follower(rank.layout());
  CHECK(follower.Follow(transport->group(), transport->subscription(), 1) == "full");
  transport->StopReceiver();
  Publish(rank, *transport, 2);
  transport->StartReceiver();
  CHECK(follower.Follow(transport->group(), transport->subscription(), 2) == "delta");
  CHECK((follower.weights() == rank.At(2)));
}

TEST_CASE("a sender that lost its snapshot continues the stream with full tensors",
          "[conformance]") {
  const std::string kind = EachKind();
  INFO(kind);
  Rank rank;
  const auto transport = MakeTransport(kind);
  transport->Registered(rank.state());
  Publish(rank, *transport, 1);
  Publish(rank, *transport, 2);
  transport->StartReceiver();
  Follower follower(rank.layout());
  CHECK(follower.Follow(transport->group(), transport->subscription(), 2) == "full");
  rank.Register(rank.state()->stream, RankEpoch(2));
  transport->Registered(rank.state());
  Publish(rank, *transport, 3);
  CHECK(follower.Follow(transport->group(), transport->subscription(), 3) == "full");
  Publish(rank, *transport, 4);
  CHECK(follower.Follow(transport->group(), transport->subscription(), 4) == "delta");
  CHECK((follower.weights() == rank.At(4)));
}

TEST_CASE("a new stream takes over although its version numbers are lower", "[conformance]") {
  const std::string kind = EachKind();
  INFO(kind);
  Rank rank;
  const auto transport = MakeTransport(kind);
  transport->Registered(rank.state());
  for (uint64_t version = 1; version <= 3; ++version) Publish(rank, *transport, version);
  transport->StartReceiver();
  Follower follower(rank.layout());
  CHECK(follower.Follow(transport->group(), transport->subscription(), 3) == "full");
  const StreamId next{.incarnation = 2, .id_hi = 8, .id_lo = 9};
  rank.Register(next, RankEpoch(1));
  transport->Registered(rank.state());
  Publish(rank, *transport, 1);
  CHECK(follower.Follow(transport->group(), transport->subscription(), 1) == "full");
  CHECK(follower.at()->stream == next);
  CHECK((follower.weights() == rank.At(1)));
}

TEST_CASE("full tensors are of the wanted version while the trainer publishes newer ones",
          "[conformance]") {
  const std::string kind = EachKind();
  INFO(kind);
  Rank rank({.bytes_max = uint64_t{1} << 30, .versions_max = 1000});
  const auto transport = MakeMixed(kind);
  transport->Registered(rank.state());
  Publish(rank, *transport, 1);
  transport->StartReceiver();
  const SyncTarget target = Follower::Await(transport->subscription(), 1);
  const Weights first = rank.At(1);
  // Captures that are not announced: they only change the snapshot.
  std::atomic<bool> done{false};
  std::thread trainer([&] {
    for (uint64_t version = 2; !done && version < 400; ++version) rank.Publish(version, 0.001);
  });
  Follower follower(rank.layout());
  int taken = 0;
  for (int i = 0; i < 20; ++i) {
    const Status status = follower.TakeFull(transport->group(), target);
    INFO(ToString(status));
    CHECK(status.ok());
    CHECK((follower.weights() == first));
    if (status.ok()) ++taken;
  }
  done = true;
  trainer.join();
  CHECK(taken == 20);
}

TEST_CASE("a damaged object is refused and its version is still reached", "[conformance]") {
  const std::string kind = EachKind();
  INFO(kind);
  Rank rank;
  const auto transport = MakeTransport(kind);
  transport->Registered(rank.state());
  Publish(rank, *transport, 1);
  transport->StartReceiver();
  Follower follower(rank.layout());
  CHECK(follower.Follow(transport->group(), transport->subscription(), 1) == "full");
  // More than fits inside an announcement.
  rank.Publish(2, 0.3);
  transport->Published();
  transport->Damage(*rank.state(), 2);
  const std::string first = follower.Follow(transport->group(), transport->subscription(), 2);
  CHECK(first != "delta");
  if (kind == kDirectory) {
    // Here full tensors use the same object, so they fail too until the sender repairs it.
    CHECK_THAT(first, Catch::Matchers::Contains("SHA-256"));
    CHECK(follower.at()->version.value() == 1);
  }
  auto* const shared = dynamic_cast<SharedTransport*>(transport.get());
  const bool reached = Eventually([&] {
    if (follower.at()->version.value() == 2) return true;
    if (shared != nullptr) shared->folder().Work();
    const std::string how = follower.Follow(transport->group(), transport->subscription(), 2);
    return how == "delta" || how == "full";
  });
  REQUIRE(reached);
  CHECK(follower.rejected() > 0);
  CHECK((follower.weights() == rank.At(2)));
  CHECK(HubHas(*transport, 2));
  CHECK(transport->hub().Receivers()["r0"].nacks > 0);
  for (uint64_t version = 3; version <= 4; ++version) {
    Publish(rank, *transport, version);
    CHECK(follower.Follow(transport->group(), transport->subscription(), version) == "delta");
    CHECK((follower.weights() == rank.At(version)));
    CHECK(HubHas(*transport, version));
  }
}

TEST_CASE("a receiver hears at once that it is connected, before a trainer has registered",
          "[conformance]") {
#if !defined(__SANITIZE_THREAD__)
  class StoppedClock final : public Clock {  // no keepalive is ever due
   public:
    TimePoint Now() const override { return TimePoint(); }
  };
  const StoppedClock stopped;
  GrpcTransport transport(Ways{}, &stopped);
  transport.StartReceiver();
  CHECK(Eventually([&] { return transport.subscription().Peers()[0].connected; }));
#endif
}

}  // namespace dws
