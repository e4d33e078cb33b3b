// Arbitrary bytes as a manifest. They are refused, or they are a manifest that is the same after
// writing and reading it, if any object can have it. A manifest that fits its layout is not larger
// than the layout's maximum.
#include "common/base/check.h"
#include "common/delta/objects/manifest.h"
#include "common/model/limits.h"
#include "tests/fuzz/fuzz_input.h"
#include "tests/fuzz/fuzz_layouts.h"

namespace dws::fuzz {
namespace {

// The contract of CheckManifest for the frames of an accepted manifest.
void CheckFrames(const DeltaManifest& manifest, const RankLayout& layout, uint64_t frames_bytes) {
  uint64_t next_offset = 0;
  for (const SliceDelta& slice : manifest.slices) {
    DWS_CHECK(slice.slice.value() < layout.slice_count());
    DWS_CHECK(slice.nnz <= layout.slice(slice.slice).elements && !slice.frames.empty());
    uint64_t next_block = 0;
    for (const FrameEntry& entry : slice.frames) {
      DWS_CHECK(entry.offset == next_offset && entry.first_block >= next_block);
      next_offset += entry.size_bytes;
      next_block = uint64_t{entry.first_block} + entry.block_count;
      DWS_CHECK(next_block <= layout.slice(slice.slice).blocks);
    }
  }
  DWS_CHECK(next_offset == frames_bytes);
}

uint64_t FramesBytes(const DeltaManifest& manifest) {
  uint64_t bytes = 0;
  for (const SliceDelta& slice : manifest.slices) {
    for (const FrameEntry& entry : slice.frames) bytes += entry.size_bytes;
  }
  return bytes;
}

void Run(FuzzInput input) {
  static const RankLayout layout = ManifestLayout();
  const bool fitting = (input.Take<uint8_t>() & 1) != 0;
  uint64_t frames_bytes = input.Take<uint64_t>();
  Result<DeltaManifest> manifest = DeserializeManifest(input.rest());
  if (!manifest.ok()) return;
  const Bytes bytes = SerializeManifest(*manifest);
  const Result<DeltaManifest> again = DeserializeManifest(bytes);
  if (again.ok()) {
    DWS_CHECK(*again == *manifest && SerializeManifest(*again) == bytes);
  } else {  // without repeated fields it is too short for its slices or frames
    DWS_CHECK(!CheckManifestAlone(*manifest, FramesBytes(*manifest)).ok());
  }

  if (fitting) {  // sets the fields that mutation never gets right
    manifest->layout_signature = layout.signature();
    uint64_t sum = 0;
    for (SliceDelta& slice : manifest->slices) {
      for (FrameEntry& entry : slice.frames) {
        entry.offset = sum;
        sum += entry.size_bytes;
      }
    }
    frames_bytes = sum;
  }
  const Status alone = CheckManifestAlone(*manifest, frames_bytes);
  const Status whole = CheckManifest(*manifest, layout, frames_bytes);
  if (!whole.ok()) return;
  DWS_CHECK(alone.ok());
  CheckFrames(*manifest, layout, frames_bytes);
  DWS_CHECK(SerializeManifest(*manifest).size() <= ManifestBytesMax(layout));
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
