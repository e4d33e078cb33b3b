// A delta object in the making, frame by frame: BuildObject for models whose delta need not fit in
// memory. The same blocks give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/model/class_table.h"
#include "common/model/delta_manifest.h"

namespace dws::checkpoint {

// Takes the bytes of the frames section, one frame after the other.
using FrameSink = std::function<Status(ByteSpan)>;

// For sizes alone.
inline Status DropFrame(ByteSpan /*frame*/) { return OkStatus(); }

struct SliceEnd {
  RankSlice slice;
  Digest before;
  Digest after;
  std::optional<ClassTable> classes;  // of its class-split blocks; ignored when there are none
};

// Lifecycle: for each slice, in ascending order, Add all its blocks and EndSlice; then Finish,
// once. Holds the blocks of one frame. Threads: one.
class ObjectWriter {
 public:
  explicit ObjectWriter(FrameSink sink) : sink_(std::move(sink)) {}

  // The next block of the slice, an empty one too. Errors of the sink.
  Status Add(EncodedBlock block);
  Status EndSlice(const SliceEnd& end);
  // Header and manifest, which come before the frames. `identity` is the manifest without slices.
  std::vector<std::byte> Finish(DeltaManifest identity);

  uint64_t frames_bytes() const { return frames_bytes_; }

 private:
  static constexpr size_t kTryAtBlocks = 4096;

  // Whether the next frame is what it is, whatever blocks are still to come.
  bool IsSettled(size_t count) const;
  Status CutFrames(bool slice_ends);
  Status WriteFrame(size_t count);

  const FrameSink sink_;
  std::vector<EncodedBlock> pending_;  // of the slice, from first_pending_ on
  uint64_t pending_bytes_ = 0;
  uint32_t first_pending_ = 0;
  size_t try_at_blocks_ = kTryAtBlocks;
  uint64_t frames_bytes_ = 0;
  bool split_ = false;  // the slice has class-split blocks
  SliceDelta slice_;
  std::vector<SliceDelta> slices_;
};

}  // namespace dws::checkpoint
