// Makes a delta object frame by frame (FORMAT.md, "Object"), so the delta need not fit into memory.
// The same blocks give the same bytes.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/delta/blocks/block.h"
#include "common/model/class_table.h"
#include "common/model/delta_manifest.h"

namespace dws {

// Gets the bytes of the frames section, one frame after the other.
using FrameSink = std::function<Status(ByteSpan)>;

// A sink for callers that need only the sizes.
inline Status DropFrame(ByteSpan /*frame*/) { return OkStatus(); }

// What the manifest states about a slice.
struct SliceEnd {
  RankSlice slice;
  Digest before;
  Digest after;
  std::optional<ClassTable> classes;  // for its class-split blocks; ignored if there are none
};

// All frames of one slice, made before the object.
struct SealedSlice {
  SliceDelta delta;  // offsets are in `bytes`; before and after are not known yet
  std::vector<std::byte> bytes;
};

// Lifecycle: for each slice, in ascending order, call Add for all its blocks and then EndSlice, or
// AddSlice, or AddSealed; then call Finish once. A slice whose blocks are all empty is left out.
// Holds the blocks of one frame. Threads: one.
class ObjectWriter {
 public:
  explicit ObjectWriter(FrameSink sink) : sink_(std::move(sink)) {}
  // Keeps the frames in memory: no call fails, and Finish returns the whole object.
  ObjectWriter();
  ObjectWriter(const ObjectWriter&) = delete;
  ObjectWriter& operator=(const ObjectWriter&) = delete;

  // Reserves memory for so many bytes of frames and for the header before them, if frames are kept
  // in memory: an object of megabytes that grows costs more in new pages than its frames do.
  void Reserve(uint64_t frames_bytes);
  // What the frames of a slice take at most, about.
  static uint64_t EstimateBytes(std::span<const EncodedBlock> blocks);

  // Adds the next block of the slice, also if it is empty. Errors: of the sink.
  Status Add(EncodedBlock block);
  Status EndSlice(const SliceEnd& end);
  // Like Add and EndSlice, for a slice whose blocks, from block 0 on, are all in memory. Copies
  // none of them.
  Status AddSlice(const SliceEnd& end, std::span<const EncodedBlock> blocks);
  // Like AddSlice, but takes the frames that SealSlice made of the blocks. `end` names that slice;
  // the classes of `end` are ignored.
  Status AddSealed(const SliceEnd& end, const SealedSlice& sealed);
  // The frames that AddSlice writes; none if all blocks are empty.
  static SealedSlice SealSlice(RankSlice slice, std::span<const EncodedBlock> blocks,
                               const std::optional<ClassTable>& classes);
  // Records only that the slice changes: its one frame holds an empty block, and nothing leads from
  // `before` to `after`.
  Status NameSlice(const SliceEnd& end);
  // Returns header and manifest, which come before the frames. `identity` is the manifest without
  // slices.
  std::vector<std::byte> Finish(DeltaManifest identity);

  uint64_t frames_bytes() const { return frames_bytes_; }

 private:
  static constexpr size_t kTryAtBlocks = 4096;

  // Writes frames of `blocks`, which are the slice's blocks from `first` on: only frames that are
  // final whatever blocks follow, or all if the slice ends. Returns the number of blocks written.
  Result<size_t> WriteFrames(std::span<const EncodedBlock> blocks, uint32_t first, bool slice_ends);
  Status WriteFrame(std::span<const EncodedBlock> blocks, uint32_t first);
  Status CutPending(bool slice_ends);

  std::vector<std::byte> frames_;  // kept in memory
  const FrameSink sink_;
  std::vector<EncodedBlock> pending_;  // blocks of the slice from first_pending_
  uint64_t pending_bytes_ = 0;
  uint32_t first_pending_ = 0;
  size_t try_at_blocks_ = kTryAtBlocks;
  uint64_t frames_bytes_ = 0;
  bool split_ = false;  // the slice has class-split blocks
  SliceDelta slice_;
  std::vector<SliceDelta> slices_;
};

}  // namespace dws
