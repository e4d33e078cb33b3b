// Arbitrary bytes as a whole object, as the parts of an object with right checksums, and as a
// frame. They are refused or applied, and an accepted frame is exactly what BuildFrame makes of its
// blocks.
#include "common/base/check.h"
#include "common/delta/bits/checksum.h"
#include "common/delta/bits/compression.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/manifest.h"
#include "tests/common/delta/objects.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_layouts.h"

namespace dws::fuzz {
namespace {

void ApplyAnything(ByteSpan object) {
  static const RankLayout layout = ObjectLayout();
  samples::State state;
  for (const RankLayout::SliceEntry& slice : layout.slices())
    state.emplace_back(slice.size_bytes());
  const Status status = samples::ApplyObject(object, layout, false, state);
  for (size_t s = 0; s < state.size(); ++s) {
    DWS_CHECK(state[s].size() == layout.slices()[s].size_bytes());
  }
  if (status.ok()) DWS_CHECK(ParseObjectHeader(object)->total_bytes() == object.size());
}

void DescribeAnything(ByteSpan bytes) {
  for (const FormatField& field : DescribeObjectHeader(bytes)) {
    DWS_CHECK(field.offset + field.size_bytes <= bytes.size());
  }
  for (const FormatField& field : DescribeFrameHeader(bytes)) {
    DWS_CHECK(field.offset + field.size_bytes <= bytes.size() && !field.name.empty());
  }
}

// The manifest's bytes with the right layout signature and frame checksums; unchanged when they are
// not a manifest.
Bytes WithSoundChecksums(ByteSpan manifest_bytes, ByteSpan frames) {
  static const Digest signature = ObjectLayout().signature();
  Result<DeltaManifest> manifest = DeserializeManifest(manifest_bytes);
  if (!manifest.ok()) return {manifest_bytes.begin(), manifest_bytes.end()};
  manifest->layout_signature = signature;
  for (SliceDelta& slice : manifest->slices) {
    for (FrameEntry& entry : slice.frames) {
      entry.checksum = FrameChecksum(FrameBytes(frames, {}, entry));
    }
  }
  return SerializeManifest(*manifest);
}

// header | manifest | frames, with right sizes and checksums.
void ApplyParts(FuzzInput input, bool compressed) {
  const auto claimed_bytes = input.Take<uint32_t>();
  const ByteSpan stored = input.TakeBytes(input.Take<uint16_t>());
  // FrameBytes expects frames after a header: here they are after one of zeros.
  Bytes frames(kObjectHeaderBytes);
  frames.insert(frames.end(), input.rest().begin(), input.rest().end());
  const Bytes manifest =
      compressed ? Bytes(stored.begin(), stored.end()) : WithSoundChecksums(stored, frames);
  const ObjectHeader header{.manifest_bytes = manifest.size(),
                            .frames_bytes = frames.size() - kObjectHeaderBytes,
                            .manifest_raw_bytes = compressed ? claimed_bytes : manifest.size(),
                            .manifest_checksum = Checksum(manifest),
                            .manifest_compressed = compressed};
  Bytes object(kObjectHeaderBytes);
  StoreObjectHeader(header, object.data());
  object.insert(object.end(), manifest.begin(), manifest.end());
  object.insert(object.end(), frames.begin() + kObjectHeaderBytes, frames.end());
  ApplyAnything(object);
}

void ParseAnyFrame(ByteSpan bytes) {
  if (bytes.size() < 4) return;
  const auto views = ParseFrameBlocks(bytes, LoadLe<uint32_t>(bytes.data()));
  if (!views.ok()) return;
  std::vector<EncodedBlock> blocks;
  for (const EncodedBlockView& view : *views) {
    blocks.push_back({.mode = view.mode,
                      .nnz = view.nnz,
                      .parameters = view.parameters,
                      .payload = Bytes(view.payload.begin(), view.payload.end())});
  }
  const Bytes built = BuildFrame(blocks);
  DWS_CHECK(built.size() == FrameSize(blocks));
  DWS_CHECK(std::equal(built.begin(), built.end(), bytes.begin(), bytes.end()));
}

void Run(FuzzInput input) {
  const auto kind = input.Take<uint8_t>();
  DescribeAnything(input.rest());
  switch (kind % 4) {
    case 0:
      return ApplyAnything(input.rest());
    case 1:
      return ApplyParts(input, false);
    case 2:
      return ApplyParts(input, true);
    default:
      return ParseAnyFrame(input.rest());
  }
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
