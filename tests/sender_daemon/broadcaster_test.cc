// The sender's and the receivers' parts of a broadcast together, without gRPC: messages are
// delivered at once, objects travel over the fake libnccl.
#include "sender_daemon/serve/broadcaster.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <random>

#include "common/model/limits.h"
#include "receiver_daemon/transfer/broadcast/broadcast_member.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/nccl/host_lane.h"

namespace dws {
namespace {

constexpr std::chrono::milliseconds kTimeout{1500};
constexpr StreamId kStream{.incarnation = 1, .id_hi = 2, .id_lo = 3};

const RealClock kClock;

nccl::BroadcastChannel::Parts Parts() {
  auto api = nccl::NcclApi::Load();
  REQUIRE(api.ok());
  return {.api = *api, .lanes = nccl::HostLane::Source(), .clock = &kClock};
}

// A receiver with its Sync stream.
class Wire final : public BroadcastConnection {
 public:
  Wire(Broadcaster& sender, uint64_t number, uint64_t bytes_max = uint64_t{1} << 30)
      : sender_(sender),
        connection_(number),
        member(Parts(), {.sender = "s", .bytes_max = bytes_max},
               [this](v1::SyncUp up) { sender_.OnReport(connection_, up.broadcast()); }) {}

  void Say(v1::SyncDown message) override {
    if (deaf && !message.has_broadcast_offer()) return;
    const Status status = message.has_broadcast_offer() ? member.OnOffer(message.broadcast_offer())
                          : message.has_broadcast_begin()
                              ? member.OnBegin(message.broadcast_begin())
                              : member.OnEnd(message.broadcast_end());
    if (!status.ok()) std::abort();
  }
  void HangUp() {
    sender_.OnDisconnect(connection_);
    member.OnDisconnect();
  }
  ConnectionId connection() const { return connection_; }

 private:
  Broadcaster& sender_;
  const ConnectionId connection_;

 public:
  std::atomic<bool> deaf{false};  // handles offers only
  BroadcastMember member;
};

struct Job {
  explicit Job(size_t receivers) : sender(Parts(), kTimeout) {
    for (size_t i = 0; i < receivers; ++i) Add();
    AwaitMembers(receivers);
  }
  ~Job() {
    sender.Stop();
    for (const auto& wire : wires) wire->member.Stop();
  }
  void Add(uint64_t bytes_max = uint64_t{1} << 30) {
    wires.push_back(std::make_shared<Wire>(sender, wires.size() + 1, bytes_max));
    sender.OnHello(wires.back()->connection(), "r", wires.back()->member.nccl_version(),
                   wires.back());
  }
  void AwaitMembers(size_t count) {
    REQUIRE(Eventually([&] { return sender.view().members == count; }));
  }
  // Publishes and announces the next version.
  RetainedVersionPtr Publish() {
    auto next = std::make_shared<RetainedVersion>();
    next->version = WeightVersion(++version);
    next->base = WeightVersion(version - 1);
    next->object.resize(3'000'000 + version);  // more than connections hold
    std::mt19937_64 random(version);
    for (std::byte& byte : next->object) byte = static_cast<std::byte>(random());
    sender.Offer(kStream, next);
    return next;
  }
  std::optional<std::vector<std::byte>> Take(size_t wire, const RetainedVersion& wanted) {
    return wires[wire]->member.Take(
        {.stream = kStream, .base = *wanted.base, .version = wanted.version}, {});
  }

  uint64_t version = 1;
  Broadcaster sender;
  std::vector<std::shared_ptr<Wire>> wires;
};

}  // namespace

TEST_CASE("every receiver gets a version that is announced", "[broadcast]") {
  Job job(3);
  for (int i = 0; i < 5; ++i) {
    const RetainedVersionPtr published = job.Publish();
    for (size_t wire = 0; wire < 3; ++wire) {
      const auto taken = job.Take(wire, *published);
      REQUIRE(taken.has_value());
      CHECK(*taken == published->object);
    }
    // The sender's side ends together with the receivers' or later.
    REQUIRE(Eventually([&] { return job.sender.view().sent == static_cast<uint64_t>(i) + 1; }));
  }
  CHECK(job.sender.view().failed == 0);
}

TEST_CASE("a receiver that cannot keep an object does not delay the others", "[broadcast]") {
  Job job(1);
  job.Add(1000);
  job.AwaitMembers(2);
  const RetainedVersionPtr published = job.Publish();
  CHECK(job.Take(0, *published) == published->object);
  CHECK(job.Take(1, *published) == std::nullopt);
  CHECK(job.sender.view().failed == 0);
}

TEST_CASE("a stalled receiver delays one broadcast and joins again once it answers",
          "[broadcast]") {
  Job job(3);
  const uint64_t stalled = job.sender.view().epoch;
  job.wires[1]->deaf = true;
  const TimePoint began = kClock.Now();
  const RetainedVersionPtr lost = job.Publish();
  // Receivers after it in the sender's order get nothing, and continue after the deadline.
  CHECK(job.Take(2, *lost) == std::nullopt);
  CHECK(job.Take(1, *lost) == std::nullopt);
  CHECK(kClock.Now() - began < kTimeout + std::chrono::seconds(10));
  REQUIRE(Eventually([&] { return job.sender.view().failed == 1; }));
  job.AwaitMembers(2);
  const RetainedVersionPtr next = job.Publish();
  CHECK(job.Take(0, *next) == next->object);
  CHECK(job.Take(2, *next) == next->object);
  CHECK(job.sender.view().failed == 1);

  job.wires[1]->deaf = false;
  v1::SyncDown end;  // the end that it had not handled
  end.mutable_broadcast_end()->set_epoch(stalled);
  job.wires[1]->Say(end);
  job.AwaitMembers(3);
  const RetainedVersionPtr last = job.Publish();
  for (size_t wire = 0; wire < 3; ++wire) CHECK(job.Take(wire, *last) == last->object);
}

TEST_CASE("a receiver that hangs up ends the epoch at once and the others continue",
          "[broadcast]") {
  Job job(3);
  job.wires[2]->HangUp();
  job.AwaitMembers(2);
  const RetainedVersionPtr published = job.Publish();
  CHECK(job.Take(0, *published) == published->object);
  CHECK(job.Take(1, *published) == published->object);
  CHECK(job.wires[2]->member.view().epoch == 0);
}

TEST_CASE("invalid broadcast messages are refused", "[broadcast]") {
  BroadcastMember member(Parts(), {.sender = "s", .bytes_max = 1000}, [](v1::SyncUp) {});
  v1::BroadcastOffer offer;
  offer.set_epoch(1);
  offer.set_unique_id(std::string(nccl::kUniqueIdBytes, 'x'));
  offer.set_rank(1);
  offer.set_size(2);
  offer.set_piece_bytes(1);
  v1::BroadcastOffer bad = offer;
  bad.set_unique_id("short");
  CHECK(absl::IsInvalidArgument(member.OnOffer(bad)));
  bad = offer;
  bad.set_rank(2);
  CHECK(absl::IsInvalidArgument(member.OnOffer(bad)));
  bad = offer;
  bad.set_piece_bytes(limits::kBroadcastPieceBytes + 1);
  CHECK(absl::IsInvalidArgument(member.OnOffer(bad)));
  v1::BroadcastBegin begin;
  begin.mutable_stream()->set_incarnation(1);
  begin.mutable_stream()->set_id_hi(2);
  begin.set_object_bytes(limits::kBroadcastObjectBytesMax + 1);
  CHECK(absl::IsInvalidArgument(member.OnBegin(begin)));
  begin.set_object_bytes(1);
  begin.set_epoch(7);
  CHECK(member.OnBegin(begin).ok());  // a begin of an epoch that has ended is ignored
}

}  // namespace dws
