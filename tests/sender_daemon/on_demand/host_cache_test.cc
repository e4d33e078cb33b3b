// The cache of a host, which fetches from real senders' serving parts.
#include "sender_daemon/on_demand/gather/host_cache.h"

#include <catch2/catch.hpp>
#include <future>
#include <numeric>

#include "common/transport/same_host/block_stamps.h"
#include "tests/sender_daemon/on_demand/owners.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

constexpr uint64_t kSliceBytes = 50 * 1024 * 2;

// Three tensors, of which two ranks have 50 rows each.
ShardedModel Model() {
  ShardedModel model{.tensors = {}, .layouts = {}};
  std::vector<std::vector<Shard>> shards(2);
  for (const std::string name : {"a", "b", "c"}) {
    const TensorSpec spec{.name = name,
                          .dtype = DType::kBF16,
                          .shape = {100, 1024},
                          .cuts = {{.dim = 0, .at = {50}}}};
    model.tensors.push_back(spec);
    for (uint32_t r = 0; r < 2; ++r) shards[r].push_back({.tensor = spec, .cells = {{r, 1}}});
  }
  for (auto& owned : shards) model.layouts.push_back(MakeLayout(std::move(owned)));
  return model;
}

// The cache of rank 0's sender, for what rank 1 of another host has.
class Cached {
 public:
  explicit Cached(uint64_t bytes_max) : owners_(Model(), 1) {
    links_ = *OwnerLinks::Create(owners_.Options().links, listener_, clock_);
    cache_ = std::make_unique<HostCache>(
        HostCache::Options{.bytes_max = bytes_max, .fabric = {}, .spool_folder = folder_.path()},
        *links_, clock_);
    owners_.Publish(1);
    REQUIRE(Registered(1));
  }

  Owners& owners() { return owners_; }
  HostCache& cache() { return *cache_; }
  bool Registered(uint64_t version) {
    return Eventually(
        [&] { return links_->owner(TrainerRank(1)).Has(Want(version, {0}).at).ok(); });
  }
  HostCache::Want Want(uint64_t version, const std::vector<uint32_t>& slices) {
    HostCache::Want want{.at = {.stream = kTrainStream, .version = WeightVersion(version)},
                         .owner = TrainerRank(1),
                         .layout = owners_.model().layouts[1].signature(),
                         .slices = {}};
    for (const uint32_t slice : slices) want.slices.emplace_back(slice);
    return want;
  }
  std::future<Result<HostCache::Copy>> Ask(const HostCache::Want& want) {
    const auto answer = std::make_shared<std::promise<Result<HostCache::Copy>>>();
    cache_->Bring(want, [answer](Result<HostCache::Copy> copy) { answer->set_value(copy); });
    return answer->get_future();
  }
  Result<HostCache::Copy> Bring(const HostCache::Want& want) { return Ask(want).get(); }
  // Without the cache.
  Status Advance(SnapshotMemory& copy, WeightVersion base, const HostCache::Want& want) {
    Cancellation stopped;
    std::vector<std::unique_ptr<Source>> sources;
    PartReader::AddFarSources(*links_, {}, clock_, sources);
    PartReader reader({.only = std::nullopt, .spool_folder = folder_.path()}, std::move(sources),
                      *links_, stopped);
    const PlacedMemory placed{
        .memory = copy.content(),
        .places = {{.first_byte = copy.places().slice_offset(want.slices[0])}}};
    return reader
        .Advance({.at = want.at,
                  .owner = want.owner,
                  .slices = want.slices,
                  .placed = placed,
                  .wanted = [] { return true; }},
                 base, *links_->owner(want.owner).Has(want.at))
        .status();
  }
  // Returns whether a slice is there as its owner has published it, and all of its blocks say so.
  bool Has(const SnapshotMemory& copy, uint32_t slice, uint64_t version) {
    const RankLayout& layout = owners_.model().layouts[1];
    const RankLayout::SliceEntry& entry = layout.slice(RankSlice(slice));
    const ByteSpan bytes =
        copy.content().subspan(copy.places().slice_offset(RankSlice(slice)), entry.size_bytes());
    return AllBy(copy.stamps().subspan(entry.first_block, entry.blocks), WeightVersion(version)) &&
           std::ranges::equal(bytes, owners_.SharesOf(1, version)[slice]);
  }

 private:
  TempFolder folder_;
  RealClock clock_;
  SilentListener listener_;
  Owners owners_;
  std::unique_ptr<OwnerLinks> links_;
  std::unique_ptr<HostCache> cache_;
};

}  // namespace

TEST_CASE("what several ask for is fetched once a version", "[on_demand]") {
  Cached cached(uint64_t{1} << 20);
  for (uint64_t version = 1; version <= 3; ++version) {
    if (version > 1) cached.owners().Publish(version);
    REQUIRE(cached.Registered(version));
    std::vector<std::future<Result<HostCache::Copy>>> answers;
    for (int i = 0; i < 8; ++i) answers.push_back(cached.Ask(cached.Want(version, {0, 2})));
    for (auto& answer : answers) {
      const Result<HostCache::Copy> copy = answer.get();
      INFO(ToString(copy.status()));
      REQUIRE(copy.ok());
      CHECK(cached.Has(**copy, 0, version));
      CHECK(cached.Has(**copy, 2, version));
      CHECK_FALSE(AllBy((*copy)->stamps().subspan(
                            cached.owners().model().layouts[1].slice(RankSlice(1)).first_block, 1),
                        WeightVersion(version)));  // nobody has asked for it
    }
    CHECK(cached.cache().counts().fetched_bytes == version * 2 * kSliceBytes);
    CHECK(cached.cache().counts().held_bytes == 2 * kSliceBytes);
  }
}

TEST_CASE("of a version that is like the one that is there only the changes are fetched",
          "[on_demand]") {
  Cached cached(uint64_t{1} << 20);
  CHECK(cached.Bring(cached.Want(1, {0, 2})).ok());
  const uint64_t full = 2 * kSliceBytes;
  REQUIRE(cached.cache().counts().fetched_bytes == full);
  for (uint64_t version = 2; version <= 4; ++version) cached.owners().PublishLike(version, 100);
  REQUIRE(cached.Registered(4));
  for (const uint64_t version : {2, 4}) {  // the second one by a delta over two versions
    const Result<HostCache::Copy> copy = cached.Bring(cached.Want(version, {0, 2}));
    REQUIRE(copy.ok());
    CHECK(cached.Has(**copy, 0, version));
    CHECK(cached.Has(**copy, 2, version));
  }
  const uint64_t fetched = cached.cache().counts().fetched_bytes;
  CHECK(fetched > full);
  CHECK(fetched < full + full / 10);

  // Memory that is not as it should be is noticed, and fetched in full.
  const Result<HostCache::Copy> copy = cached.Bring(cached.Want(4, {0, 2}));
  (*copy)->content()[(*copy)->places().slice_offset(RankSlice(2)) + 5] ^= std::byte{1};
  cached.owners().PublishLike(5, 100);
  REQUIRE(cached.Registered(5));
  CHECK(cached.Bring(cached.Want(5, {0, 2})).ok());
  CHECK(cached.Has(**copy, 2, 5));
  CHECK(cached.cache().counts().fetched_bytes == fetched + full);
}

TEST_CASE("a delta with more than half of the bytes is not sent", "[on_demand]") {
  Cached cached(uint64_t{1} << 20);
  cached.owners().Publish(2);
  REQUIRE(cached.Registered(2));
  const Result<HostCache::Copy> copy = cached.Bring(cached.Want(1, {0}));
  REQUIRE(copy.ok());
  const Status status = cached.Advance(**copy, WeightVersion(1), cached.Want(2, {0}));
  CHECK(absl::IsResourceExhausted(status));
  CHECK_THAT(ToString(status),
             Contains("the object or part has") && Contains("bytes, at most 51200 are wanted"));
}

TEST_CASE("slices have room in the order in which they are asked for", "[on_demand]") {
  Cached cached(2 * kSliceBytes + 1);
  CHECK(cached.Bring(cached.Want(1, {0})).ok());
  CHECK(cached.Bring(cached.Want(1, {2})).ok());
  const Status full = cached.Bring(cached.Want(1, {1})).status();
  CHECK(absl::IsResourceExhausted(full));
  CHECK_THAT(ToString(full), Contains("204800 of 204801 bytes are in use, 102400 more are wanted"));
  CHECK(cached.Bring(cached.Want(1, {0})).ok());
  CHECK(cached.cache().counts().held_bytes == 2 * kSliceBytes);
}

TEST_CASE("what a cache does not have to bring is refused by name", "[on_demand]") {
  Cached cached(uint64_t{1} << 20);
  HostCache::Want want = cached.Want(1, {0, 1});
  absl::StatusCode code = absl::StatusCode::kOk;
  std::string message;
  SECTION("no slices") {
    want.slices.clear();
    code = absl::StatusCode::kInvalidArgument;
    message = "no slices";
  }
  SECTION("no such slice") {
    want.slices.back() = RankSlice(3);
    code = absl::StatusCode::kInvalidArgument;
    message = "slice 3: expected ascending slices below 3";
  }
  SECTION("a slice twice") {
    want.slices.back() = RankSlice(0);
    code = absl::StatusCode::kInvalidArgument;
    message = "slice 0: expected ascending slices";
  }
  SECTION("no such rank") {
    want.owner = TrainerRank(2);
    code = absl::StatusCode::kInvalidArgument;
    message = "rank 2: expected one below 2";
  }
  SECTION("another layout") {
    want.layout = cached.owners().model().layouts[0].signature();
    code = absl::StatusCode::kAborted;
    message = "rank 1 has another layout";
  }
  SECTION("a version that is not published") {
    want.at.version = WeightVersion(2);
    code = absl::StatusCode::kUnavailable;
    message = "it has not published version 2";
  }
  SECTION("a version that has passed") {
    cached.owners().Publish(2);
    REQUIRE(cached.Registered(2));
    CHECK(cached.Bring(cached.Want(2, {0, 1})).ok());
    code = absl::StatusCode::kAborted;
    message = "the copy has version 2, 1 is wanted";
  }
  SECTION("slices that were asked for with others") {
    CHECK(cached.Bring(cached.Want(1, {1, 2})).ok());
    code = absl::StatusCode::kFailedPrecondition;
    message = "slice 1 of rank 1 was asked for together with other slices";
  }
  const Status status = cached.Bring(want).status();
  CHECK(status.code() == code);
  CHECK_THAT(ToString(status), Contains(message));
  CHECK(cached.cache().counts().held_bytes <= 2 * kSliceBytes);
}

TEST_CASE("an owner that ends is an error, and what is there stays", "[on_demand]") {
  Cached cached(uint64_t{1} << 20);
  CHECK(cached.Bring(cached.Want(1, {0})).ok());
  cached.owners().owner(1).Kill();
  CHECK_FALSE(cached.Bring(cached.Want(1, {1})).ok());
}

TEST_CASE("a cache that is stopped answers everybody", "[on_demand]") {
  Cached cached(uint64_t{1} << 20);
  std::vector<std::future<Result<HostCache::Copy>>> answers;
  for (uint32_t slice = 0; slice < 3; ++slice) {
    for (int i = 0; i < 4; ++i) answers.push_back(cached.Ask(cached.Want(1, {slice})));
  }
  cached.cache().Stop();
  for (auto& answer : answers) {
    REQUIRE(answer.wait_for(std::chrono::seconds(20)) == std::future_status::ready);
    const Result<HostCache::Copy> copy = answer.get();
    if (!copy.ok()) CHECK_FALSE(copy.status().message().empty());
  }
  CHECK(absl::IsUnavailable(cached.Bring(cached.Want(1, {0})).status()));
}

}  // namespace dws
