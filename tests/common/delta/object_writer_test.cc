// An object written frame by frame is the one that is made from whole slices.
#include "common/delta/objects/object_writer.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace dws {
namespace {

EncodedBlock RawBlock(std::mt19937& random, size_t payload_max) {
  EncodedBlock block{.mode = BlockMode::kRaw, .nnz = static_cast<uint32_t>(1 + random() % 1000)};
  block.payload.resize(1 + random() % payload_max);
  for (std::byte& byte : block.payload) byte = static_cast<std::byte>(random());
  return block;
}

// Runs of changed and of empty blocks with lengths around the limits.
std::vector<EncodedBlock> RandomBlocks(std::mt19937& random, size_t count, size_t payload_max) {
  std::vector<EncodedBlock> blocks(count);
  for (size_t at = random() % 2 == 0 ? 0 : random() % 40; at < count;) {
    const size_t run = 1 + random() % 100;
    for (size_t i = 0; i < run && at < count; ++i) blocks[at++] = RawBlock(random, payload_max);
    at += random() % 3 == 0 ? 25 + random() % 80 : random() % 10;
  }
  return blocks;
}

}  // namespace

TEST_CASE(
    "an object written frame by frame, or from sealed slices, has the bytes of one built at once",
    "[delta]") {
  const uint32_t seed = GENERATE(range(1U, 9U));
  CAPTURE(seed);
  std::mt19937 random(seed);
  std::vector<std::vector<EncodedBlock>> slices;
  // Many tiny blocks, few large ones, none at all, and empty ones only.
  slices.push_back(RandomBlocks(random, 9000, 8));
  slices.push_back(RandomBlocks(random, 300, 60'000));
  slices.emplace_back();
  slices.emplace_back(70);
  slices.push_back(RandomBlocks(random, 1 + random() % 200, 3000));

  std::vector<std::byte> frames;
  ObjectWriter writer([&frames](ByteSpan frame) {
    frames.insert(frames.end(), frame.begin(), frame.end());
    return OkStatus();
  });
  ObjectWriter whole;
  ObjectWriter sealed;
  for (uint32_t s = 0; s < slices.size(); ++s) {
    const Digest before{.lane0 = s, .lane1 = 1};
    const Digest after{.lane0 = s, .lane1 = 2};
    const SliceEnd end{.slice = RankSlice(s), .before = before, .after = after};
    REQUIRE(whole.AddSlice(end, slices[s]).ok());
    const SealedSlice slice = ObjectWriter::SealSlice(RankSlice(s), slices[s], std::nullopt);
    CHECK(slice.delta.frames.empty() == slice.bytes.empty());
    REQUIRE(sealed.AddSealed(end, slice).ok());
    for (const EncodedBlock& block : slices[s]) REQUIRE(writer.Add(block).ok());
    REQUIRE(writer.EndSlice(end).ok());
  }
  const DeltaManifest identity{.version = WeightVersion(2), .base_version = WeightVersion(1)};
  std::vector<std::byte> object = writer.Finish(identity);
  CHECK(writer.frames_bytes() == frames.size());
  object.insert(object.end(), frames.begin(), frames.end());
  CHECK(object == whole.Finish(identity));
  CHECK(object == sealed.Finish(identity));
}

}  // namespace dws
