// Blocks of a delta read in order equal those of FindBlocks, and each frame is read once.
#include <algorithm>
#include <catch2/catch.hpp>
#include <utility>
#include <vector>

#include "common/delta/encoder.h"
#include "common/delta/objects/delta_link.h"
#include "common/delta/objects/frame.h"

namespace dws {
namespace {

constexpr uint32_t kBlocks = 40;

// Two slices with frames of blocks 3 to 6, 7 to 9 and 20 to 29 each; others change nothing.
struct Delta {
  Delta() {
    manifest.version = WeightVersion(2);
    for (const uint32_t slice : {1U, 3U}) {
      SliceDelta& delta = manifest.slices.emplace_back();
      delta.slice = RankSlice(slice);
      for (const auto& [first, count] : {std::pair{3U, 4U}, {7U, 3U}, {20U, 10U}}) {
        std::vector<EncodedBlock> blocks;
        for (uint32_t i = 0; i < count; ++i) {
          const auto position = static_cast<uint16_t>(100 * slice + first + i);
          blocks.push_back(
              EncodeSteps(DType::kBF16, {.positions = {position}, .steps = {1}}, 1000));
        }
        frames.push_back(BuildFrame(blocks));
        delta.frames.push_back({.first_block = first,
                                .block_count = count,
                                .offset = frames.size() - 1,
                                .size_bytes = frames.back().size(),
                                .checksum = FrameChecksum(frames.back())});
      }
    }
  }

  DeltaLink Link() {
    return {.manifest = &manifest,
            .frame = [this](const FrameEntry& entry,
                            std::vector<std::byte>& buffer) -> Result<ByteSpan> {
              ++reads;
              buffer = frames[entry.offset];
              return ByteSpan(buffer);
            }};
  }

  DeltaManifest manifest;
  std::vector<std::vector<std::byte>> frames;  // by offset
  int reads = 0;
};

}  // namespace

TEST_CASE("blocks read in order are those of the delta and each frame is read once", "[delta]") {
  Delta delta;
  LinkReader reader(delta.Link());
  for (uint32_t slice = 0; slice < 5; ++slice) {
    LinkBlocks all;
    REQUIRE(FindBlocks(delta.Link(), RankSlice(slice), 0, kBlocks, all).ok());
    const bool touched = slice == 1 || slice == 3;
    CHECK(delta.reads == (touched ? 3 : 0));
    delta.reads = 0;
    for (uint32_t block = 0; block < kBlocks; ++block) {
      CAPTURE(slice, block);
      const auto view = reader.Find(RankSlice(slice), block);
      REQUIRE(view.ok());
      CHECK(view->mode == all.views[block].mode);
      CHECK(std::equal(view->payload.begin(), view->payload.end(), all.views[block].payload.begin(),
                       all.views[block].payload.end()));
    }
    CHECK(delta.reads == (touched ? 3 : 0));
    delta.reads = 0;
  }
}

TEST_CASE("a damaged frame is an error and is not cached", "[delta]") {
  Delta delta;
  LinkReader reader(delta.Link());
  delta.frames[1].back() ^= std::byte{1};
  REQUIRE(reader.Find(RankSlice(1), 3).ok());
  const Status damaged = reader.Find(RankSlice(1), 8).status();
  INFO(ToString(damaged));
  CHECK(absl::IsDataLoss(damaged));
  CHECK(ToString(damaged).find("version 2, slice 1") != std::string::npos);
  CHECK(absl::IsDataLoss(reader.Find(RankSlice(1), 8).status()));
  delta.frames[1].back() ^= std::byte{1};
  CHECK(reader.Find(RankSlice(1), 8).ok());
}

}  // namespace dws
