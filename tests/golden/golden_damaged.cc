// Objects that must be refused, each named for its damage.
#include "common/base/check.h"
#include "common/delta/objects/frame.h"
#include "tests/common/delta/encode_block.h"
#include "tests/golden/golden_parts.h"

namespace dws::golden {
namespace {

using samples::Bytes;
using samples::Encoding;
using samples::State;

constexpr EncodeOptions kRelative{};

// The object that is damaged below: one small tensor, one frame of one block with exceptions, an
// uncompressed manifest.
struct Victim {
  RankLayout layout = LayoutOf({Tensor("w", DType::kBF16, {1000})});
  uint64_t seed = 20;
  Encoding encoding;
  DeltaManifest manifest;
  Bytes frame;

  Victim() {
    const State before = samples::RandomState(layout, seed);
    encoding = samples::EncodeState(layout, before, NudgeAll(layout, before, 0.03, 3), kRelative);
    Refresh();
  }
  EncodedBlock& block() { return encoding.blocks[0][0]; }
  // Makes frame and manifest from the present encoding.
  void Refresh() {
    frame = BuildFrame(encoding.blocks[0]);
    manifest = samples::Identity(layout, encoding, 4);
    manifest.slices.resize(1);
    manifest.slices[0].nnz = block().nnz;
    manifest.slices[0].before = encoding.before[0];
    manifest.slices[0].after = encoding.after[0];
    manifest.slices[0].frames = {{.first_block = 0,
                                  .block_count = 1,
                                  .offset = 0,
                                  .size_bytes = frame.size(),
                                  .checksum = FrameChecksum(frame)}};
    if (!encoding.classes.empty()) manifest.slices[0].classes = encoding.classes[0];
  }
  Bytes Object() const { return samples::Assemble(manifest, frame, 1); }
  GoldenCase Damaged(std::string name, std::string outcome, Bytes object) const {
    return {.name = std::move(name),
            .layout = layout,
            .seed = seed,
            .outcome = std::move(outcome),
            .object = std::move(object),
            .after = {}};
  }
};

// Damage that checksums detect.
void AddDamaged(std::vector<GoldenCase>& cases) {
  const Victim victim;
  const Bytes sound = victim.Object();
  const auto cut = [&](size_t size) {
    return Bytes(sound.begin(), sound.begin() + static_cast<ptrdiff_t>(size));
  };
  const auto flip = [&](size_t at) {
    Bytes object = sound;
    object[at] ^= std::byte{0x10};
    return object;
  };
  cases.push_back(victim.Damaged("header_truncated", "DATA_LOSS", cut(63)));
  cases.push_back(victim.Damaged("manifest_truncated", "DATA_LOSS", cut(100)));
  cases.push_back(victim.Damaged("frames_truncated", "DATA_LOSS", cut(sound.size() - 1)));
  Bytes longer = sound;
  longer.push_back(std::byte{0});
  cases.push_back(victim.Damaged("byte_after_the_last_frame", "DATA_LOSS", longer));
  cases.push_back(victim.Damaged("magic_flipped", "DATA_LOSS", flip(3)));
  cases.push_back(victim.Damaged("format_version_flipped", "DATA_LOSS", flip(8)));
  cases.push_back(victim.Damaged("manifest_size_flipped", "DATA_LOSS", flip(16)));
  cases.push_back(victim.Damaged("manifest_flipped", "DATA_LOSS", flip(80)));
  cases.push_back(victim.Damaged("frame_flipped", "DATA_LOSS", flip(sound.size() - 20)));
}

// Adds malformed class-split blocks.
void AddMalformedSplit(std::vector<GoldenCase>& cases) {
  const auto add = [&](std::string name, auto damage) {
    Victim victim;
    const State before = samples::RandomState(victim.layout, victim.seed);
    samples::SplitEveryBlock(victim.layout, before, NudgeAll(victim.layout, before, 0.03, 3),
                             kClasses, victim.encoding);
    victim.Refresh();
    damage(victim);
    cases.push_back(victim.Damaged(std::move(name), "DATA_LOSS", victim.Object()));
  };
  add("class_split_count_too_large", [](Victim& victim) {
    ++victim.block().nnz;
    victim.Refresh();
  });
  add("class_split_shift_out_of_reach", [](Victim& victim) {
    victim.manifest.slices[0].classes->thresholds = {1, 56, 80, 100};
    victim.block().parameters &= 0x0FFF;
    const ClassTable table = *victim.manifest.slices[0].classes;
    victim.Refresh();
    victim.manifest.slices[0].classes = table;
  });
  add("class_split_other_classes", [](Victim& victim) {
    victim.manifest.slices[0].classes->thresholds = {10, 11, 12, 13};
  });
  add("class_split_padding_not_zero", [](Victim& victim) {
    victim.block().payload.push_back(std::byte{0});
    victim.Refresh();
  });
}

// Damage under right checksums.
void AddMalformed(std::vector<GoldenCase>& cases) {
  const Victim sound;
  cases.push_back(sound.Damaged("format_version_2", "UNIMPLEMENTED",
                                samples::Assemble(sound.manifest, sound.frame, 2)));
  const auto add_block = [&](std::string name, std::string outcome, auto damage) {
    Victim victim;
    damage(victim.block());
    victim.Refresh();
    cases.push_back(victim.Damaged(std::move(name), std::move(outcome), victim.Object()));
  };
  add_block("class_split_without_a_table", "DATA_LOSS",
            [](EncodedBlock& block) { block.mode = BlockMode::kClassSplit; });
  add_block("mode_9_unknown", "UNIMPLEMENTED",
            [](EncodedBlock& block) { block.mode = static_cast<BlockMode>(9); });
  add_block("payload_padding_not_zero", "DATA_LOSS",
            [](EncodedBlock& block) { block.payload.back() |= std::byte{0x80}; });
  add_block("payload_one_byte_short", "DATA_LOSS",
            [](EncodedBlock& block) { block.payload.pop_back(); });
  add_block("payload_one_byte_long", "DATA_LOSS",
            [](EncodedBlock& block) { block.payload.push_back(std::byte{0}); });
  add_block("count_one_too_large", "DATA_LOSS", [](EncodedBlock& block) { ++block.nnz; });
  add_block("parameters_reserved_bit", "DATA_LOSS",
            [](EncodedBlock& block) { block.parameters |= 0x20; });

  AddMalformedSplit(cases);

  const auto add_manifest = [&](std::string name, std::string outcome, auto damage) {
    Victim victim;
    damage(victim.manifest);
    cases.push_back(victim.Damaged(std::move(name), std::move(outcome), victim.Object()));
  };
  add_manifest("digest_after_of_another_state", "DATA_LOSS",
               [](DeltaManifest& manifest) { ++manifest.slices[0].after.lane1; });
  add_manifest("digest_before_of_another_base", "DATA_LOSS",
               [](DeltaManifest& manifest) { ++manifest.slices[0].before.lane0; });
  add_manifest("another_layout", "FAILED_PRECONDITION",
               [](DeltaManifest& manifest) { ++manifest.layout_signature.lane0; });
  add_manifest("slice_outside_the_layout", "DATA_LOSS",
               [](DeltaManifest& manifest) { manifest.slices[0].slice = RankSlice(1); });
  add_manifest("block_outside_the_slice", "DATA_LOSS",
               [](DeltaManifest& manifest) { manifest.slices[0].frames[0].first_block = 1; });
  add_manifest("frames_overlap", "DATA_LOSS", [](DeltaManifest& manifest) {
    manifest.slices[0].frames.push_back(manifest.slices[0].frames[0]);
  });
  add_manifest("version_not_above_base", "DATA_LOSS",
               [](DeltaManifest& manifest) { manifest.base_version = manifest.version; });

  Victim short_tensor;  // positions of 1000 elements, read with a layout of 900
  short_tensor.layout = LayoutOf({Tensor("w", DType::kBF16, {900})});
  short_tensor.Refresh();
  cases.push_back(
      short_tensor.Damaged("position_outside_the_block", "DATA_LOSS", short_tensor.Object()));
}

}  // namespace

void AddDamagedCases(std::vector<GoldenCase>& cases) {
  AddDamaged(cases);
  AddMalformed(cases);
}

}  // namespace dws::golden
