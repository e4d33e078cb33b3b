// Work on an engine's weights in place: the interface between the commit pipeline and the kinds of
// memory. Implemented by host_backend.h and cuda_backend.h. An engine has one backend for its host
// memory, if it uses any, and one for each device that it uses.
//
//   Stage         decodes frames against live memory, predicts digests. Writes nothing there
//   Scatter       engine paused: writes to live memory what was staged
//   ApplyInPlace  engine paused: writes frames that were too large to stage
//   WriteFull     engine not released yet: writes whole blocks as they arrive
//   WriteLent     the same from GPU memory that a sender lends; StageLent: beside a running engine
//   Digests, Read read live memory
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/pace.h"
#include "common/memory/staging_budget.h"
#include "common/model/block_range.h"
#include "common/model/digest/digest.h"
#include "common/model/layout.h"
#include "common/spool/device_target.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"

namespace dws {

// Frames of one trainer rank. Refers to objects that its creator owns.
struct FrameSet {
  const RankLayout& layout;
  TrainerRank rank;
  std::span<const SpooledFrame> frames;
  const Spool& spool;
};

// The result of staging in one memory. Used only with the backend that made it, which must outlive
// it.
class StagedFrames {
 public:
  struct Frame {
    Status status;  // DATA_LOSS or another decoder error: the frame is damaged
    // By place: the difference that it adds to the digest; empty: not held here.
    std::vector<Digest> differences;
  };

  virtual ~StagedFrames() = default;

  // In the order of the set's frames.
  const std::vector<Frame>& frames() const { return frames_; }

  // Ends staging: drops the frames whose element of `kept` is 0. Called once, before Scatter.
  // INTERNAL: the device fails. RESOURCE_EXHAUSTED: the device has no memory.
  virtual Status Seal(std::span<const uint8_t> kept) = 0;

  // Memory that it holds, on the host or on a device.
  virtual uint64_t size_bytes() const = 0;

 protected:
  std::vector<Frame> frames_;
};

// Lifecycle: made with an engine's mapping; EngineWeights owns it and keeps the memory mapped.
// Threads: Stage and its results, Read, WriteLent and StageLent from several at once (the parts of
// several trainer ranks); WriteFull from several at once, for different blocks; PlaceCount and Read
// (for other receivers) from any; the others from one at a time (the worker's), and, but for
// Digests, not during a Stage or Read.
class MemoryBackend {
 public:
  virtual ~MemoryBackend() = default;

  // How many places in this memory hold the slice.
  virtual size_t PlaceCount(TrainerRank rank, RankSlice slice) const = 0;

  // Returns the digests of all places that hold `slices`, by slice and place. They have a meaning
  // only if nobody writes there meanwhile. INTERNAL: the device fails.
  virtual Result<std::vector<std::vector<Digest>>> Digests(const RankLayout& layout,
                                                           TrainerRank rank,
                                                           std::span<const RankSlice> slices,
                                                           Pace pace, ThreadPool& pool) = 0;

  // Copies whole blocks of a slice that is held here, as its first place has them, from
  // `first_block` on, in slice order. INTERNAL: the device fails.
  virtual Status Read(const RankLayout& layout, TrainerRank rank, RankSlice slice,
                      uint32_t first_block, MutableByteSpan out) = 0;

  // Counts the memory that it keeps in `budget`. Once that is exceeded, no write is kept; digests
  // are still predicted. Damaged frames are reported in the result. INTERNAL: the device fails.
  // RESOURCE_EXHAUSTED: it has no memory.
  virtual Result<std::unique_ptr<StagedFrames>> Stage(const FrameSet& set, StagingBudget& budget,
                                                      ThreadPool& pool) = 0;

  // Begins to write everything in `parts`, which this backend staged and which are sealed. Call
  // Synchronize to wait for the end. Allocates nothing.
  virtual Status Scatter(std::span<const StagedFrames* const> parts, ThreadPool& pool) = 0;

  // Applies accepted frames directly to memory. After an error some of them may be applied.
  // DATA_LOSS, UNAVAILABLE: the spool lost bytes.
  virtual Status ApplyInPlace(const FrameSet& set, ThreadPool& pool) = 0;

  // Writes whole blocks of a slice, in slice order, to all of its places; they are visible to every
  // later reader. After an error some of them may be written. INTERNAL, RESOURCE_EXHAUSTED: the
  // device fails, or has no memory.
  virtual Status WriteFull(const RankLayout& layout, TrainerRank rank, const BlockRange& blocks,
                           ByteSpan bytes) = 0;

  // Returns whether this is memory of a GPU; the next two functions are called only for that.
  virtual bool on_device() const { return false; }
  // Writes slices to their places here, and says for each whether all of these are as expected.
  // Errors: DeviceTarget::Copy's. After an error some may be written.
  virtual Result<std::vector<uint8_t>> WriteLent(const RankLayout& layout, TrainerRank rank,
                                                 std::span<const LentSlice> slices);
  struct Lent {
    std::unique_ptr<StagedFrames> staged;  // sealed, without frames: slices that are as expected
    std::vector<uint8_t> arrived;          // by slice: it is as expected, or not held here
  };
  // Copies slices to staging memory. Errors: as WriteLent, and RESOURCE_EXHAUSTED: `budget`.
  virtual Result<Lent> StageLent(const RankLayout& layout, TrainerRank rank,
                                 std::span<const LentSlice> slices, StagingBudget& budget);

  // Returns when all writes are visible to every later reader of this memory.
  virtual Status Synchronize() = 0;

  // For how long input was copied to a device so far, of Stage and ApplyInPlace: the host's part,
  // while the device computes on. Threads: safe from any.
  virtual Duration UploadTime() const { return Duration::zero(); }
};

}  // namespace dws
