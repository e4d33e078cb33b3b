// Writes the first inputs of a corpus: make_seeds DIRECTORY makes DIRECTORY/<target>/<number>.
// Valid blocks, frames, manifests and objects, which mutation alone hardly finds.
#include <fmt/format.h>

#include <string>

#include "common/base/check.h"
#include "common/delta/bits/compression.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/manifest.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/objects.h"
#include "tests/common/delta/samples.h"
#include "tests/fuzz/format_seeds.h"
#include "tests/fuzz/fuzz_layouts.h"
#include "tests/fuzz/seeds.h"

namespace dws::fuzz {
namespace {

using samples::Bytes;
using samples::Random;

constexpr size_t kPatternBytes = 32;

constexpr EncodeOptions kOptions[] = {{.relative = true, .absolute = false, .zstd = false},
                                      {.relative = true, .absolute = true, .zstd = true},
                                      {.relative = false, .absolute = true, .zstd = false},
                                      {.relative = false, .absolute = true, .zstd = true}};

// An input in the form that decode_block_fuzz reads; at most 256 elements.
Bytes BlockInput(DType dtype, const Bytes& before, const EncodedBlock& block,
                 const ClassTable& classes) {
  const auto element_count = static_cast<uint32_t>(before.size() / ElementBytes(dtype));
  Bytes input;
  Put(input, static_cast<uint8_t>(static_cast<uint32_t>(dtype) - 1));
  Put(input, static_cast<uint8_t>(block.mode));
  Put(input, uint8_t{0});
  Put(input, static_cast<uint16_t>(element_count - 1));
  Put(input, block.nnz);
  Put(input, block.parameters);
  Put(input, static_cast<uint8_t>(kPatternBytes));
  Append(input, ByteSpan(before).first(kPatternBytes));
  Put(input, uint8_t{0});
  Put(input, static_cast<uint8_t>(ClassTableSize(classes)));
  const ClassTableBytes packed = PackClassTable(classes);
  Append(input, ByteSpan(packed).first(ClassTableSize(classes)));
  Append(input, block.payload);
  return input;
}

// 32 random bytes, repeated.
Bytes PatternBlock(Random& random, size_t size_bytes) {
  const Bytes pattern = samples::RandomBytes(random, kPatternBytes);
  Bytes block(size_bytes);
  for (size_t i = 0; i < size_bytes; ++i) block[i] = pattern[i % kPatternBytes];
  return block;
}

// The same changes class-split even if that is larger; nullopt for integers.
std::optional<EncodedBlock> ClassSplit(DType dtype, const BlockChanges& changes,
                                       const Bytes& before, const ClassTable& classes) {
  if (!TableFits(classes, dtype) || changes.size() == 0) return std::nullopt;
  EncodeScratch scratch;
  const auto element_count = static_cast<uint32_t>(before.size() / ElementBytes(dtype));
  EncodedBlock relative = EncodeSteps(dtype, changes, element_count, scratch);
  relative.payload.resize(before.size() * 2 + 1024);
  return EncodeClassSplit(dtype, changes, relative, before, classes, scratch);
}

void AddBlocks(const std::string& directory, Random& random) {
  Seeds seeds(directory, "decode_block_fuzz");
  Seeds frames(directory, "object_fuzz");
  for (const DType dtype : samples::kAllDTypes) {
    const auto top = static_cast<uint8_t>(ElementBytes(dtype) == 1 ? 100 : 200);
    const ClassTable classes{
        .thresholds = {20, 60, top}, .threshold_count = 3, .hot_below = 30, .hot_scale = 33};
    for (const uint32_t elements : {32U, 67U, 200U}) {
      const Bytes before = PatternBlock(random, size_t{elements} * ElementBytes(dtype));
      std::vector<EncodedBlock> blocks;
      for (const double density : {0.03, 0.3, 1.0}) {
        const Bytes after = samples::Nudge(random, dtype, before, density, 20);
        BlockChanges changes;
        DiffBlock(dtype, before, after, 0, changes);
        for (const EncodeOptions& options : kOptions) {
          blocks.push_back(EncodeBlock(dtype, changes, after, options));
          seeds.Add(BlockInput(dtype, before, blocks.back(), classes));
        }
        if (const auto split = ClassSplit(dtype, changes, before, classes); split.has_value()) {
          seeds.Add(BlockInput(dtype, before, *split, classes));
          blocks.push_back(*split);
        }
      }
      Bytes input(1, std::byte{3});
      Append(input, BuildFrame(blocks));
      frames.Add(input);
    }
  }
}

// Inputs of round_trip_fuzz: some changes of every kind, on random elements of every dtype.
void AddRoundTrips(const std::string& directory, Random& random) {
  Seeds seeds(directory, "round_trip_fuzz");
  for (const DType dtype : samples::kAllDTypes) {
    for (const uint8_t table : {0, 31}) {
      Bytes input;
      Put(input, uint8_t{0});  // no zstd
      Put(input, static_cast<uint8_t>(static_cast<uint32_t>(dtype) - 1));
      Put(input, uint8_t{0});
      Put(input, uint16_t{199});
      Put(input, uint8_t{0xE0});  // noise
      Put(input, static_cast<uint32_t>(random.Next()));
      Put(input, uint8_t{8});
      for (uint8_t change = 0; change < 8; ++change) {
        Put(input, static_cast<uint8_t>(change % 2 == 0 ? 0x80 : 5 + change % 5));
        Put(input, random.Next());
      }
      Put(input, table);
      for (const uint8_t byte : {5, 30, 33, 20, 60, 100}) Put(input, byte);
      seeds.Add(input);
    }
  }
}

// Inputs of stage_fuzz: valid frames of every mode, and their bytes as arbitrary bytes.
void AddStaging(const std::string& directory, Random& random) {
  Seeds seeds(directory, "stage_fuzz");
  for (const DType dtype : samples::kAllDTypes) {
    for (uint8_t mode = 0; mode < 4; ++mode) {
      Bytes head;
      Put(head, static_cast<uint8_t>(static_cast<uint32_t>(dtype) - 1));
      Put(head, uint8_t{0});
      Put(head, uint16_t{199});  // 200 elements
      Put(head, static_cast<uint8_t>(kPatternBytes));
      Append(head, samples::RandomBytes(random, kPatternBytes));
      Put(head, uint8_t{39});  // runs of 40
      Put(head, static_cast<uint8_t>(mode == 0 ? 10 : 23));
      Put(head, uint8_t{6});
      for (const uint8_t byte : {30, 33, 20, 60, 90, 100}) Put(head, byte);
      Bytes sound = head;
      Put(sound, mode);
      Put(sound, uint8_t{8});
      for (uint8_t change = 0; change < 8; ++change) {
        Put(sound, static_cast<uint8_t>(change % 2 == 0 ? 0x80 : 5 + change % 5));
        Put(sound, random.Next());
      }
      for (const uint8_t kind : {0, 1}) {
        Bytes input(1, static_cast<std::byte>(kind));
        Append(input, sound);
        seeds.Add(input);
      }
      const Bytes before = PatternBlock(random, size_t{200} * ElementBytes(dtype));
      const Bytes after = samples::Nudge(random, dtype, before, 0.2, 4);
      BlockChanges changes;
      DiffBlock(dtype, before, after, 0, changes);
      const std::vector<EncodedBlock> blocks = {EncodeBlock(dtype, changes, after, kOptions[mode])};
      Bytes arbitrary(1, std::byte{16});
      Append(arbitrary, head);
      Append(arbitrary, BuildFrame(blocks));
      seeds.Add(arbitrary);
    }
  }
}

// Objects of the target's layout, whole and in parts, and their manifests.
void AddObjects(const std::string& directory, Random& random) {
  Seeds objects(directory, "object_fuzz/objects");
  Seeds manifests(directory, "manifest_fuzz");
  for (const RankLayout& layout : {ObjectLayout(), ManifestLayout()}) {
    const samples::State before = samples::RandomState(layout, 1);
    for (const double density : {0.0, 0.001, 0.01}) {
      samples::State after = before;
      for (size_t s = 0; s < after.size(); ++s) {
        after[s] = samples::Nudge(random, layout.slices()[s].dtype, before[s], density, 6);
      }
      const Bytes object =
          samples::SealObject(layout, samples::EncodeState(layout, before, after, {}), 4);
      const ObjectHeader header = *ParseObjectHeader(object);
      const Bytes manifest = SerializeManifest(*ParseObjectManifest(object, layout));
      const ByteSpan frames = ByteSpan(object).last(header.frames_bytes);
      for (const uint8_t fitting : {0, 1}) {
        Bytes input;
        Put(input, fitting);
        Put(input, uint64_t{frames.size()});
        Append(input, manifest);
        manifests.Add(input);
      }
      if (layout != ObjectLayout()) continue;
      Bytes whole(1);
      Append(whole, object);
      objects.Add(whole);
      for (const uint8_t kind : {1, 2}) {
        const Bytes stored = kind == 2 ? Compress(manifest) : manifest;
        Bytes input;
        Put(input, kind);
        Put(input, static_cast<uint32_t>(manifest.size()));
        Put(input, static_cast<uint16_t>(stored.size()));
        Append(input, stored);
        Append(input, frames);
        objects.Add(input);
      }
    }
  }
}

}  // namespace
}  // namespace dws::fuzz

int main(int argc, char** argv) {
  if (argc != 2) {
    fmt::print(stderr, "usage: make_seeds DIRECTORY\n");
    return 2;
  }
  dws::samples::Random random(1);
  dws::fuzz::AddBlocks(argv[1], random);
  dws::fuzz::AddRoundTrips(argv[1], random);
  dws::fuzz::AddObjects(argv[1], random);
  dws::fuzz::AddStaging(argv[1], random);
  dws::fuzz::AddFormats(argv[1]);
  return 0;
}
