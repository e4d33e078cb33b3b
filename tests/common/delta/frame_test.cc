// Frames: a built frame parses into the same blocks, its size is known beforehand, grouping keeps
// the limits, and every damage is named.
#include "common/delta/objects/frame.h"

#include <catch2/catch.hpp>

#include "common/model/limits.h"
#include "tests/common/delta/samples.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;

EncodedBlock Block(Random& random, BlockMode mode, size_t payload_bytes) {
  if (mode == BlockMode::kEmpty) return {};
  return {.mode = mode,
          .nnz = 1 + static_cast<uint32_t>(random.Below(limits::kBlockElements)),
          .parameters = static_cast<uint16_t>(random.Below(32)),
          .payload = samples::RandomBytes(random, payload_bytes)};
}

FrameEntry EntryOf(const Bytes& frame, size_t blocks) {
  return {.first_block = 0,
          .block_count = static_cast<uint32_t>(blocks),
          .offset = 0,
          .size_bytes = frame.size(),
          .checksum = FrameChecksum(frame)};
}

void RequireSame(const std::vector<EncodedBlock>& blocks) {
  const Bytes frame = BuildFrame(blocks);
  REQUIRE(frame.size() == FrameSize(blocks));
  const Result<std::vector<EncodedBlockView>> views =
      ParseFrame(frame, EntryOf(frame, blocks.size()));
  INFO(ToString(views.status()));
  REQUIRE(views.ok());
  REQUIRE(views->size() == blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const EncodedBlockView& view = (*views)[i];
    REQUIRE(view.mode == blocks[i].mode);
    REQUIRE(view.nnz == blocks[i].nnz);
    REQUIRE(view.parameters == blocks[i].parameters);
    REQUIRE(Bytes(view.payload.begin(), view.payload.end()) == blocks[i].payload);
  }
}

void RequireDamaged(const Result<std::vector<EncodedBlockView>>& views, std::string_view word) {
  INFO(ToString(views.status()));
  REQUIRE(views.status().code() == absl::StatusCode::kDataLoss);
  REQUIRE(Message(views.status()).find(word) != std::string_view::npos);
}

}  // namespace

TEST_CASE("the blocks parsed from a frame are those it was built from", "[delta]") {
  Random random(samples::TestSeed());
  RequireSame({Block(random, BlockMode::kSplitRice, 1)});
  RequireSame({EncodedBlock{}});
  RequireSame(std::vector<EncodedBlock>(1000));
  const std::vector<EncodedBlock> same(9, Block(random, BlockMode::kSplitRice, 77));
  RequireSame(same);
  for (int round = 0; round < 50; ++round) {
    std::vector<EncodedBlock> blocks;
    for (uint64_t i = 0; i < 1 + random.Below(70); ++i) {
      const uint64_t mode = random.Below(7);
      blocks.push_back(
          Block(random, static_cast<BlockMode>(mode), random.Below(mode == 5 ? 9000 : 700)));
    }
    RequireSame(blocks);
  }
}

TEST_CASE("the index of similar blocks costs at most two bytes a block", "[delta]") {
  Random random(samples::TestSeed());
  std::vector<EncodedBlock> blocks;
  uint64_t payload_bytes = 0;
  for (int i = 0; i < 1000; ++i) {
    EncodedBlock block = Block(random, BlockMode::kSplitRice, 580 + random.Below(100));
    block.nnz = 500 + static_cast<uint32_t>(random.Below(60));
    block.parameters = static_cast<uint16_t>(6 + random.Below(2));
    payload_bytes += block.payload.size();
    blocks.push_back(std::move(block));
  }
  REQUIRE(FrameSize(blocks) - payload_bytes <= 2000);
}

TEST_CASE("frames take blocks up to the byte limit and stop at long unchanged runs", "[delta]") {
  Random random(samples::TestSeed());
  const std::vector<EncodedBlock> full(20, Block(random, BlockMode::kDenseRaw, 131'072));
  REQUIRE(BlocksOfNextFrame(full) == 7);
  REQUIRE(FrameSize(std::span(full).first(7)) <= limits::kFrameBytesMax);
  REQUIRE(FrameSize(std::span(full).first(8)) > limits::kFrameBytesMax);

  const EncodedBlock changed = Block(random, BlockMode::kSplitRice, 100);
  std::vector<EncodedBlock> blocks(31);  // unchanged: fewer than are worth leaving out
  blocks.insert(blocks.begin(), changed);
  blocks.push_back(changed);
  REQUIRE(BlocksOfNextFrame(blocks) == 33);
  blocks.insert(blocks.begin() + 5, EncodedBlock{});
  REQUIRE(BlocksOfNextFrame(blocks) == 1);
  blocks.pop_back();
  REQUIRE(BlocksOfNextFrame(blocks) == 1);  // unchanged blocks at the end are left out
  REQUIRE(BlocksOfNextFrame(std::span(blocks).subspan(1)) == 1);
  const std::vector<EncodedBlock> many(kFrameBlocksMax + 1,
                                       Block(random, BlockMode::kSplitRice, 3));
  REQUIRE(BlocksOfNextFrame(many) == kFrameBlocksMax);
}

TEST_CASE("every truncation and every flipped bit of a frame is an error", "[delta]") {
  Random random(samples::TestSeed());
  std::vector<EncodedBlock> blocks;
  for (size_t i = 0; i < 5; ++i) blocks.push_back(Block(random, BlockMode::kSplitRice, 20 + i));
  const Bytes frame = BuildFrame(blocks);
  const FrameEntry entry = EntryOf(frame, blocks.size());
  for (size_t size = 0; size < frame.size(); ++size) {
    REQUIRE(ParseFrame(ByteSpan(frame).first(size), entry).status().code() ==
            absl::StatusCode::kDataLoss);
  }
  for (size_t bit = 0; bit < frame.size() * 8; ++bit) {
    Bytes damaged = frame;
    damaged[bit / 8] ^= std::byte{1} << (bit % 8);
    REQUIRE(ParseFrame(damaged, entry).status().code() == absl::StatusCode::kDataLoss);
  }
}

TEST_CASE("a frame with a right checksum and a wrong index is an error that names the fault",
          "[delta]") {
  Random random(samples::TestSeed());
  std::vector<EncodedBlock> blocks;
  for (size_t i = 0; i < 5; ++i) blocks.push_back(Block(random, BlockMode::kSplitRice, 20 + i));
  const Bytes sound = BuildFrame(blocks);
  const auto damage = [&](size_t at, uint8_t value) {
    Bytes frame = sound;
    frame[at] = std::byte{value};
    return frame;
  };
  const auto parse = [&](const Bytes& frame) {
    return ParseFrame(frame, EntryOf(frame, blocks.size()));
  };
  RequireDamaged(parse(damage(0, 6)), "6 blocks");
  RequireDamaged(parse(damage(4, 1)), "its header gives");
  RequireDamaged(parse(damage(8, 19)), "after the last payload");
  RequireDamaged(parse(damage(8, 200)), "are left");
  RequireDamaged(parse(damage(19, 21)), "sizes of 21 bits");
  RequireDamaged(parse(damage(23, 1)), "last byte");
  RequireDamaged(parse(damage(24, static_cast<uint8_t>(sound[24]) | 1)), "not packed");
  RequireDamaged(ParseFrame(sound, EntryOf(sound, 4)), "the manifest has 4");
}

TEST_CASE("frames with random damage under right checksums are errors or stay inside the frame",
          "[delta]") {
  Random random(samples::TestSeed());
  for (int round = 0; round < 20'000; ++round) {
    std::vector<EncodedBlock> blocks;
    for (uint64_t i = 0; i < 1 + random.Below(4); ++i) {
      blocks.push_back(Block(random, static_cast<BlockMode>(random.Below(7)), random.Below(30)));
    }
    Bytes frame = BuildFrame(blocks);
    for (uint64_t i = 0; i < 1 + random.Below(3); ++i) {
      frame[random.Below(std::min<size_t>(frame.size(), 40))] =
          static_cast<std::byte>(random.Next());
    }
    const Result<std::vector<EncodedBlockView>> views =
        ParseFrame(frame, EntryOf(frame, blocks.size()));
    if (!views.ok()) continue;
    size_t payload_bytes = 0;
    for (const EncodedBlockView& view : *views) {
      payload_bytes += view.payload.size();
      REQUIRE(view.payload.data() >= frame.data());
      REQUIRE(view.payload.data() + view.payload.size() <= frame.data() + frame.size());
    }
    REQUIRE(payload_bytes <= frame.size());
  }
}

}  // namespace dws
