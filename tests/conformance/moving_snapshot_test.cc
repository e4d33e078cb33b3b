// Full tensors of a version from the memory of a sender whose trainer goes on: what has changed
// since is turned back by the deltas, or comes another way, and is right.
#include <catch2/catch.hpp>
#include <cstring>
#include <string>
#include <thread>

#include "common/model/block_range.h"
#include "common/transport/fabric/fabric_api.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/grpc_transport.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

// Live weights of an engine that has no version: full tensors are written there as they arrive.
class LiveTarget final : public DirectTarget {
 public:
  explicit LiveTarget(const RankLayout& layout) : layout_(layout) {
    for (const auto& slice : layout.slices()) weights_.emplace_back(slice.size_bytes());
  }
  Status Write(TrainerRank, const BlockRange& range, ByteSpan bytes) override {
    std::memcpy(weights_[range.slice.value()].data() + FirstByte(layout_, range), bytes.data(),
                bytes.size());
    return OkStatus();
  }
  const Weights& weights() const { return weights_; }

 private:
  const RankLayout& layout_;
  Weights weights_;
};

// A receiver of full tensors, to which they come by `way`, and if `required` by no other.
struct Moving {
  Moving(const std::string& way_in, bool required, DeltaLogLimits limits)
      : way(way_in),
        rank(limits),
        transport(Ways{.only_full = required ? std::optional(way_in) : std::nullopt,
                       .fabric = {.on = way_in == "fabric", .only = FabricProvider::kTcp}}) {
    transport.Registered(rank.state());
    rank.Publish(1);
    transport.Published();
    if (way == "fabric") transport.CloseHandleSocket();  // else they would come from the same host
    transport.StartReceiver();
    target = Follower::Await(transport.subscription(), 1);
  }
  Status Take() {
    Spool::Options options = Follower::SpoolOptions();
    options.memory_bytes_max = memory_bytes_max;
    return follower.TakeFull(transport.group(), target, options);
  }
  uint64_t Bytes(std::string_view source, Content content) const {
    for (const SourceChain::Total& total : transport.sources().totals()) {
      if (total.source == source && total.content == content) return total.bytes;
    }
    return 0;
  }

  const std::string way;
  Rank rank;
  GrpcTransport transport;
  Follower follower{rank.layout()};
  SyncTarget target;
  uint64_t memory_bytes_max = uint64_t{1} << 24;
};

constexpr DeltaLogLimits kMany = {.bytes_max = uint64_t{1} << 30, .versions_max = 64};

bool HasFabric() {
#if defined(__SANITIZE_THREAD__)
  return false;  // ThreadSanitizer reports gRPC's own threads there
#else
  return FabricApi::Load().ok();
#endif
}

std::string EachMemoryWay() {
  const std::string way = GENERATE("same-host", "fabric");
  if (way == "same-host" || HasFabric()) return way;
  WARN("skipped: there is no fabric");
  return "same-host";
}

}  // namespace

TEST_CASE("a snapshot that has moved on still gives the older version", "[conformance]") {
  const bool required = GENERATE(false, true);
  Moving it(EachMemoryWay(), required, kMany);
  INFO(it.way);
  it.rank.Publish(2);
  SECTION("by one version") {}
  SECTION("by several, with a gap in their numbers") {
    it.rank.Publish(5, 0.3);
    it.rank.Publish(6);
  }
  SECTION("in many reads, where there is little memory") { it.memory_bytes_max = 1; }
  REQUIRE(it.Take().ok());
  CHECK(it.follower.weights() == it.rank.At(1));
  CHECK(it.follower.refused().empty());
  CHECK(it.Bytes(it.way, Content::kFull) == it.rank.layout().size_bytes());
  CHECK(it.Bytes("grpc", Content::kFull) == 0);
  CHECK(it.Bytes("grpc", Content::kDelta) > 0);
  CHECK(it.Bytes("grpc", Content::kDelta) < it.rank.layout().size_bytes() / 2);
}

TEST_CASE("live memory gets the older version of a snapshot that has moved on", "[conformance]") {
  Moving it(EachMemoryWay(), true, kMany);
  INFO(it.way);
  it.rank.Publish(2);
  it.rank.Publish(3);
  LiveTarget live(it.rank.layout());
  std::vector<RankSlice> slices;
  for (uint32_t s = 0; s < it.rank.layout().slice_count(); ++s) slices.emplace_back(s);
  const auto described = it.transport.senders().Describe(it.target, TrainerRank(0));
  REQUIRE(described.ok());
  const auto full = it.transport.group().sources.Full({it.target, TrainerRank(0)},
                                                      {.layout = it.rank.layout(),
                                                       .slices = slices,
                                                       .expected = described->slices,
                                                       .direct = &live},
                                                      Follower::SpoolOptions());
  REQUIRE(full.ok());
  CHECK(live.weights() == it.rank.At(1));
  CHECK(it.Bytes(it.way, Content::kFull) == it.rank.layout().size_bytes());
}

TEST_CASE("a trainer that publishes all the time does not keep a version from coming",
          "[conformance]") {
  Moving it(EachMemoryWay(), true, kMany);
  INFO(it.way);
  const Weights wanted = it.rank.At(1);
  std::atomic<bool> stop{false};
  std::thread trainer([&] {
    for (uint64_t version = 2; version < 40 && !stop; ++version) it.rank.Publish(version);
  });
  REQUIRE(Eventually([&] { return it.rank.state()->log->Newest()->version > WeightVersion(3); }));
  const Status taken = it.Take();
  stop = true;
  trainer.join();
  INFO(ToString(taken));
  CHECK(taken.ok());
  CHECK(it.Bytes("grpc", Content::kDelta) > 0);
  CHECK(it.follower.weights() == wanted);
  CHECK(it.Bytes(it.way, Content::kFull) == it.rank.layout().size_bytes());
}

TEST_CASE("what cannot be turned back is left to other ways, or the version fails by name",
          "[conformance]") {
  const bool required = GENERATE(false, true);
  Moving it(EachMemoryWay(), required, kMany);
  INFO(it.way);
  it.rank.Publish(2);
  it.transport.Damage(*it.rank.state(), 2);  // the delta
  const Status taken = it.Take();
  CHECK_FALSE(taken.ok());  // the sender cannot undo it either
  CHECK(it.follower.refused().size() == (required ? 1 : 0));
  if (required) CHECK_THAT(ToString(taken), Contains("cannot be turned back"));
  CHECK(it.Bytes(it.way, Content::kFull) < it.rank.layout().size_bytes());
}

}  // namespace dws
