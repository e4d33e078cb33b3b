#include "sender_daemon/capture/full/open_reads.h"

#include <catch2/catch.hpp>

#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

// One tensor of four blocks, one of two.
RankLayout Layout() {
  return MakeLayout(
      {{.tensor = {.name = "a", .dtype = DType::kU8, .shape = {4 * limits::kBlockElements}}},
       {.tensor = {.name = "b", .dtype = DType::kU8, .shape = {2 * limits::kBlockElements}}}});
}

constexpr BlockRange kFirst{RankSlice(0), 0, 4};
constexpr BlockRange kSecond{RankSlice(1), 0, 2};

std::vector<BlockRange> Slices() { return {kFirst, kSecond}; }

std::vector<uint64_t> Wanted(const std::shared_ptr<KeptBlocks>& kept) {
  std::vector<uint64_t> numbers;
  for (uint64_t number = 0; kept != nullptr && number < 6; ++number) {
    if (kept->Wants(number)) numbers.push_back(number);
  }
  return numbers;
}

TEST_CASE("what readers have yet to read is kept, and nothing without readers", "[full_version]") {
  const RankLayout layout = Layout();
  OpenReads reads(layout, layout.size_bytes());
  CHECK(reads.BeginOverwrite(WeightVersion(1)) == nullptr);
  OpenReads::Read far(reads, WeightVersion(1), Slices());
  far.Passed(1, 1);
  CHECK(Wanted(reads.BeginOverwrite(WeightVersion(1))) == std::vector<uint64_t>{5});
  CHECK(reads.BeginOverwrite(WeightVersion(2)) == nullptr);  // it reads only what is kept now
  OpenReads::Read one(reads, WeightVersion(2), {kFirst});
  one.Passed(0, 2);
  CHECK(one.kept() == nullptr);
  const auto kept = reads.BeginOverwrite(WeightVersion(2));
  CHECK(Wanted(kept) == std::vector<uint64_t>{2, 3});
  CHECK(one.kept() == kept);
  CHECK(kept->version() == WeightVersion(2));
}

TEST_CASE("kept blocks have the bytes that they were given first", "[full_version]") {
  const RankLayout layout = Layout();
  OpenReads reads(layout, layout.size_bytes());
  OpenReads::Read reader(reads, WeightVersion(1), {kSecond});
  const auto kept = reads.BeginOverwrite(WeightVersion(1));
  std::vector<std::byte> bytes(limits::kBlockElements, std::byte{7});
  kept->Keep(3, bytes);  // nobody needs it
  kept->Keep(4, bytes);
  std::ranges::fill(bytes, std::byte{8});
  kept->Keep(5, bytes);
  kept->Keep(4, bytes);
  CHECK_FALSE(kept->closed());
  kept->Close();
  CHECK(reader.kept()->Block(4, bytes.size())[9] == std::byte{7});
  CHECK(reader.kept()->Block(5, bytes.size())[9] == std::byte{8});
}

TEST_CASE("those who have waited longest come first when there is not room for all",
          "[full_version]") {
  const RankLayout layout = Layout();
  OpenReads reads(layout, layout.size_bytes());
  auto first =
      std::make_unique<OpenReads::Read>(reads, WeightVersion(1), std::vector<BlockRange>{kFirst});
  const auto kept = reads.BeginOverwrite(WeightVersion(1));
  REQUIRE(first->kept() == kept);
  OpenReads::Read second(reads, WeightVersion(2), Slices());  // six blocks, there is room for two
  OpenReads::Read third(reads, WeightVersion(2), {kSecond});
  CHECK(Wanted(reads.BeginOverwrite(WeightVersion(2))) == std::vector<uint64_t>{4, 5});
  CHECK(second.kept() == nullptr);
  CHECK(third.kept() != nullptr);
}

TEST_CASE("the room is free again once the readers are gone", "[full_version]") {
  const RankLayout layout = Layout();
  OpenReads reads(layout, layout.size_bytes());
  for (uint64_t version = 1; version <= 3; ++version) {
    OpenReads::Read reader(reads, WeightVersion(version), Slices());
    CHECK(Wanted(reads.BeginOverwrite(WeightVersion(version))).size() == 6);
  }
}

TEST_CASE("after a refusal whole versions are kept for a reader that comes late",
          "[full_version]") {
  const RankLayout layout = Layout();
  OpenReads reads(layout, layout.size_bytes(), Duration::zero());
  reads.Refused();
  std::weak_ptr<KeptBlocks> spare = reads.BeginOverwrite(WeightVersion(1));
  REQUIRE(Wanted(spare.lock()).size() == 6);
  SECTION("the reader of that version gets it, and it goes with the reader") {
    auto late = std::make_unique<OpenReads::Read>(reads, WeightVersion(1), Slices());
    CHECK(late->kept() == spare.lock());
    late.reset();
    CHECK(spare.expired());
  }
  SECTION("a reader of the version that overwrote it reads the snapshot") {
    OpenReads::Read current(reads, WeightVersion(2), Slices());
    CHECK(current.kept() == nullptr);
  }
  SECTION("the next version drops it") {
    SECTION("a full one, which keeps its own") {
      const auto next = reads.BeginOverwrite(WeightVersion(2));
      CHECK(Wanted(next).size() == 6);
      CHECK(next->version() == WeightVersion(2));
    }
    SECTION("a delta") { reads.DropSpare(); }
    CHECK(spare.expired());
  }
  SECTION("that ends after some versions without another refusal") {
    for (uint32_t i = 1; i < OpenReads::kKeepAllVersions; ++i) {
      CHECK(reads.BeginOverwrite(WeightVersion(1 + i)) != nullptr);
    }
    CHECK(reads.BeginOverwrite(WeightVersion(20)) == nullptr);
  }
}

TEST_CASE("whole versions are kept until the refused reader has tried again", "[full_version]") {
  const RankLayout layout = Layout();
  OpenReads reads(layout, layout.size_bytes(), std::chrono::hours(1));
  reads.Refused();
  for (uint32_t i = 0; i < 3 * OpenReads::kKeepAllVersions; ++i) {
    CHECK(Wanted(reads.BeginOverwrite(WeightVersion(1 + i))).size() == 6);
  }
}

}  // namespace
}  // namespace dws
