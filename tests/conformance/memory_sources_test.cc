// Full tensors by the way that is required, and by no other; and a fabric that lies: they come
// another way then, right, and the receiver says why.
#include <algorithm>
#include <catch2/catch.hpp>
#include <cstring>
#include <deque>
#include <string>

#include "common/proto_convert/convert.h"
#include "common/transport/fabric/fabric_api.h"
#include "common/transport/same_host/host_id.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/grpc_transport.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

// Reports success for everything.
class Liar final : public RemoteMemory {
 public:
  // `stamps_offset`: what lies from there on is moved, as zeros, but for the first stamp, which is
  // moved as `first`. Nullopt: nothing is moved.
  Liar(std::optional<size_t> stamps_offset, uint64_t first)
      : stamps_offset_(stamps_offset), first_(first) {}

  const std::string& name() const override { return name_; }
  size_t pieces_max() const override { return 2; }
  Status Start(const Piece& piece) override {
    begun_.push_back(piece.tag);
    if (!stamps_offset_.has_value() || piece.offset < *stamps_offset_) return OkStatus();
    std::fill(piece.to.begin(), piece.to.end(), std::byte{0});
    if (piece.offset == *stamps_offset_) std::memcpy(piece.to.data(), &first_, sizeof(first_));
    return OkStatus();
  }
  Result<uint64_t> Wait() override {
    const uint64_t tag = begun_.front();
    begun_.pop_front();
    return tag;
  }

 private:
  const std::optional<size_t> stamps_offset_;
  const uint64_t first_;
  const std::string name_ = "liar (nic0)";
  std::deque<uint64_t> begun_;
};

struct Case {
  Rank rank;
  std::optional<size_t> moves_from;
  uint64_t first_stamp = 0;

  // A receiver whose first full tensors have come, or not.
  std::unique_ptr<GrpcTransport> Follow(std::optional<std::string> required, std::string& outcome) {
    auto transport = std::make_unique<GrpcTransport>(Ways{
        .only_full = required,
        .fabric = {.on = true, .only = FabricProvider::kTcp},
        .connect = [this](const RemoteRegion&,
                          const FabricReader::Options&) -> Result<std::unique_ptr<RemoteMemory>> {
          return std::make_unique<Liar>(moves_from, first_stamp);
        }});
    transport->Registered(rank.state());
    rank.Publish(1);
    transport->Published();
    transport->CloseHandleSocket();  // else they would come from the same host
    transport->StartReceiver();
    Follower follower(rank.layout());
    outcome = follower.Follow(transport->group(), transport->subscription(), 1);
    if (outcome == "full") CHECK(follower.weights() == rank.At(1));
    return transport;
  }
};

// With a whole sender and receiver ThreadSanitizer reports gRPC's own threads.
bool Skip() {
#if defined(__SANITIZE_THREAD__)
  return true;
#else
  const auto installed = FabricApi::Load();
  if (!installed.ok()) WARN("skipped: " << Message(installed.status()));
  return !installed.ok();
#endif
}

}  // namespace

TEST_CASE("a fabric that reports success and moves nothing is passed over, and named",
          "[conformance]") {
  if (Skip()) return;
  Case with;
  std::string why;
  SECTION("nothing at all") {
    why = "fabric: fabric liar (nic0) says that it has read, and has moved";
  }
  SECTION("stamps, but no bytes") {
    with.moves_from = with.rank.state()->snapshot->memory().places().stamps_offset();
    why = "slices are not as published";
  }
  SECTION("of one slice not even all stamps are right") {
    with.moves_from = with.rank.state()->snapshot->memory().places().stamps_offset();
    with.first_stamp = 1'000'000;
    why = "grpc: 1 slices are not as published";
  }
  std::string outcome;
  const auto transport = with.Follow(std::nullopt, outcome);
  CHECK(outcome == "full");
  const SourceChain::Last last = transport->last_full();
  CHECK(last.source == "grpc");
  CHECK_THAT(last.reason, Contains("same-host: the sender's handle socket cannot be reached"));
  CHECK_THAT(last.reason, Contains(why));
}

TEST_CASE("where only a fabric may be used, one that moves nothing is an error", "[conformance]") {
  if (Skip()) return;
  Case with;
  std::string outcome;
  const auto transport = with.Follow("fabric", outcome);
  CHECK_THAT(outcome, Contains("UNAVAILABLE") && Contains("may come by fabric only") &&
                          Contains("has moved nothing"));
  CHECK(transport->last_full().detail == "tcp");
  for (const SourceChain::Total& total : transport->sources().totals()) CHECK(total.bytes == 0);
}

namespace {

// A receiver to which full tensors may come one way only, of those that read the sender's memory.
struct OneWay {
  explicit OneWay(const std::string& way_in) : way(way_in), transport(way_in) {
    transport.Registered(rank.state());
    rank.Publish(1);
    transport.Published();
    transport.StartReceiver();
  }
  // What came by it, and no full tensors by another.
  uint64_t bytes() const {
    uint64_t came = 0;
    for (const SourceChain::Total& total : transport.sources().totals()) {
      if (total.source == way) {
        came += total.bytes;
      } else if (total.content == Content::kFull) {
        CHECK(total.bytes == 0);
      }
    }
    return came;
  }

  const std::string way;
  Rank rank;
  GrpcTransport transport;
  Follower follower{rank.layout()};
};

std::string EachMemoryWay() {
  const std::string way = GENERATE("same-host", "fabric");
  return way == "fabric" && Skip() ? "same-host" : way;
}

}  // namespace

TEST_CASE("by a required way a version comes whole or fails by name, and the next one is taken",
          "[conformance]") {
#if !defined(__SANITIZE_THREAD__)
  OneWay it(EachMemoryWay());
  INFO(it.way);
  const SyncTarget first = Follower::Await(it.transport.subscription(), 1);
  // The snapshot has moved on, unannounced, and the delta that would turn it back is damaged.
  it.rank.Publish(2);
  it.transport.Damage(*it.rank.state(), 2);
  const Status failed = it.follower.TakeFull(it.transport.group(), first);
  CHECK(absl::IsUnavailable(failed));
  CHECK_THAT(ToString(failed),
             Contains(fmt::format("may come by {} only, which brought", it.way)) &&
                 Contains(fmt::format("of {} bytes of version 1", it.rank.layout().size_bytes())) &&
                 Contains("the trainer has changed them since, and they cannot be turned back"));
  CHECK(it.bytes() == 0);
  CHECK(it.transport.last_full().reason == Message(failed));
  REQUIRE(it.follower.refused().size() == 1);
  CHECK(it.follower.refused()[0] == failed);

  it.transport.Published();
  CHECK(it.follower.Follow(it.transport.group(), it.transport.subscription(), 2) == "full");
  CHECK(it.follower.weights() == it.rank.At(2));
  CHECK(it.bytes() == it.rank.layout().size_bytes());
  CHECK(it.transport.last_full().reason.empty());
  CHECK(it.follower.refused().size() == 1);
#endif
}

TEST_CASE("damage that a required way finds is told to the sender without another way",
          "[conformance]") {
#if !defined(__SANITIZE_THREAD__)
  OneWay it(EachMemoryWay());
  INFO(it.way);
  const SyncTarget target = Follower::Await(it.transport.subscription(), 1);
  auto& memory = const_cast<SnapshotMemory&>(it.rank.state()->snapshot->memory());
  memory.content()[0] ^= std::byte{1};
  const Status failed = it.follower.TakeFull(it.transport.group(), target);
  CHECK(absl::IsUnavailable(failed));
  CHECK_THAT(ToString(failed), Contains("1 slices are not as published"));
  REQUIRE(it.follower.refused().size() == 1);
  CHECK(absl::IsDataLoss(it.follower.refused()[0]));
  CHECK(it.bytes() == 0);
  memory.content()[0] ^= std::byte{1};
  CHECK(it.follower.Follow(it.transport.group(), it.transport.subscription(), 1) == "full");
  CHECK(it.bytes() == it.rank.layout().size_bytes());
#endif
}

TEST_CASE("a sender passes its snapshot on its own host only", "[conformance]") {
  Rank rank;
  GrpcTransport transport("same-host");
  transport.Registered(rank.state());
  rank.Publish(1);
  const auto stub = v1::SyncService::NewStub(
      grpc::CreateChannel(transport.address(), grpc::InsecureChannelCredentials()));
  v1::OpenSnapshotRequest request;
  *request.mutable_stream() = ToProto(rank.state()->stream);
  *request.mutable_layout_signature() = ToProto(rank.layout().signature());
  const auto ask = [&](const std::string& host, v1::OpenSnapshotReply& reply) {
    grpc::ClientContext context;
    request.set_host(host);
    return stub->OpenSnapshot(&context, request, &reply);
  };
  // Another boot of this host is another kernel.
  for (const std::string& other :
       {std::string(), std::string(HostId().size(), '0'), HostId().substr(1), HostId() + "\n"}) {
    v1::OpenSnapshotReply reply;
    const grpc::Status refused = ask(other, reply);
    CHECK(refused.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    CHECK(refused.error_message() == "this sender is on another host");
    CHECK(reply.token().empty());
  }
  v1::OpenSnapshotReply reply;
  REQUIRE(ask(HostId(), reply).ok());
  CHECK(reply.snapshot() == rank.state()->snapshot->memory().id());
  CHECK_FALSE(reply.token().empty());
  // A receiver that has mapped it already needs no descriptor.
  request.set_mapped(reply.snapshot());
  v1::OpenSnapshotReply mapped;
  REQUIRE(ask(HostId(), mapped).ok());
  CHECK(mapped.snapshot() == reply.snapshot());
  CHECK(mapped.token().empty());
}

}  // namespace dws
