// Properties of the block codec: every state of every dtype decodes exactly, the encoding depends
// on its input alone and is no larger than it has to be, and damage is an error.
#include <catch2/catch.hpp>

#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/samples.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;

constexpr EncodeOptions kOptions[] = {{.relative = true, .absolute = false, .zstd = false},
                                      {.relative = false, .absolute = true, .zstd = false},
                                      {.relative = false, .absolute = true, .zstd = true},
                                      {.relative = true, .absolute = true, .zstd = false},
                                      {.relative = true, .absolute = true, .zstd = true}};

// Encodes, checks the properties that every encoding has, and returns its size.
size_t RoundTrip(DType dtype, const Bytes& before, const Bytes& after,
                 const EncodeOptions& options) {
  BlockChanges changes;
  DiffBlock(dtype, before, after, 0, changes);
  const EncodedBlock block = EncodeBlock(dtype, changes, after, options);
  const EncodedBlock again = EncodeBlock(dtype, changes, after, options);
  REQUIRE(again.payload == block.payload);
  REQUIRE(again.parameters == block.parameters);

  const uint32_t element_count = static_cast<uint32_t>(before.size() / ElementBytes(dtype));
  DecodedBlock decoded;
  const Status status = DecodeBlock(dtype, element_count, ViewOf(block), decoded);
  INFO(ToString(status));
  REQUIRE(status.ok());
  Bytes state = before;
  ApplyBlock(dtype, decoded, state);
  REQUIRE(state == after);
  if (!options.absolute) {
    UndoBlock(dtype, decoded, state);
    REQUIRE(state == before);
  }
  REQUIRE(block.payload.size() <= after.size() + after.size() / 1000 + 1);
  return block.payload.size();
}

}  // namespace

TEST_CASE("every dtype at every density decodes exactly", "[delta]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    for (const uint32_t elements : {1u, 2u, 7u, 64u, 1001u, 65'535u, 65'536u}) {
      const Bytes before = samples::RandomBytes(random, size_t{elements} * ElementBytes(dtype));
      for (const double density : {0.0, 0.0005, 0.01, 0.1, 0.5, 1.0}) {
        const Bytes after = samples::Nudge(random, dtype, before, density,
                                           1 + static_cast<uint32_t>(random.Below(12)));
        INFO(ToString(dtype) << " x " << elements << " at " << density);
        for (const EncodeOptions& options : kOptions) {
          if (options.zstd && elements > 1001) continue;
          RoundTrip(dtype, before, after, options);
        }
      }
    }
  }
}

TEST_CASE("hostile states of every dtype decode exactly", "[delta]") {
  Random random(samples::TestSeed());
  for (const DType dtype : samples::kAllDTypes) {
    for (const uint32_t elements : {1u, 2u, 5u, 1001u, 65'536u}) {
      for (const samples::Hostile& pair : samples::HostilePairs(random, dtype, elements)) {
        INFO(ToString(dtype) << " x " << elements << ": " << pair.name);
        for (const EncodeOptions& options : kOptions) {
          if (options.zstd && elements > 1001) continue;
          RoundTrip(dtype, pair.before, pair.after, options);
        }
      }
    }
  }
}

}  // namespace dws
