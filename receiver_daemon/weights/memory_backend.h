// Work on an engine's weights where they live: the seam between the commit pipeline and the kinds
// of memory. host_backend.h and cuda_backend.h are the two; an engine has one for its host memory
// and one for each device, whichever it uses.
//
//   Stage         decodes frames against live memory, predicts digests. Writes nothing there
//   Scatter       the pause: what was staged goes to live memory
//   ApplyInPlace  engine paused: frames that were too large to stage
//   Digests       reads live memory
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/memory/pace.h"
#include "common/memory/staging_budget.h"
#include "common/model/digest.h"
#include "common/model/layout.h"
#include "receiver_daemon/spool/spool.h"
#include "receiver_daemon/spool/spooled_frame.h"

namespace dws {

// Frames of one trainer rank. Looks at what its maker owns.
struct FrameSet {
  const RankLayout& layout;
  TrainerRank rank;
  std::span<const SpooledFrame> frames;
  const Spool& spool;
};

// What staging came to in one memory. Made by a backend, for it alone; released before it.
class StagedFrames {
 public:
  struct Frame {
    Status status;  // DATA_LOSS and the decoder's others: the frame is damaged
    std::vector<Digest>
        differences;  // by place: what it changes in the digest; none: not held here
  };

  virtual ~StagedFrames() = default;

  // By frame of the set.
  const std::vector<Frame>& frames() const { return frames_; }

  // Ends staging: of the frames only those stay whose element of `kept` is not 0. Once, before
  // Scatter. INTERNAL: the device fails.
  virtual Status Seal(std::span<const uint8_t> kept) = 0;

  // Memory held for it, on the host or a device.
  virtual uint64_t size_bytes() const = 0;

 protected:
  std::vector<Frame> frames_;
};

// Lifecycle: made with an engine's mapping, keeps its memory mapped. Threads: Stage, and what it
// returns, from several at once (the parts of several trainer ranks); PlaceCount from any; the
// others from one at a time (the worker's), and not while something is staged.
class MemoryBackend {
 public:
  virtual ~MemoryBackend() = default;

  // How many places in this memory hold the slice.
  virtual size_t PlaceCount(TrainerRank rank, RankSlice slice) const = 0;

  // The digests of all places that hold `slices`, by slice and place. Meaningful only if nobody
  // writes there meanwhile. INTERNAL: the device fails.
  virtual Result<std::vector<std::vector<Digest>>> Digests(const RankLayout& layout,
                                                           TrainerRank rank,
                                                           std::span<const RankSlice> slices,
                                                           Pace pace, ThreadPool& pool) = 0;

  // Takes what it keeps from `budget`; past that nothing is kept any more, only digests are
  // predicted. Damaged frames are in the result. INTERNAL, RESOURCE_EXHAUSTED: the device fails, or
  // has no memory.
  virtual Result<std::unique_ptr<StagedFrames>> Stage(const FrameSet& set, StagingBudget& budget,
                                                      ThreadPool& pool) = 0;

  // Begins to write all that is in `parts`, sealed and staged by this backend; Synchronize ends it.
  // Allocates nothing.
  virtual Status Scatter(std::span<const StagedFrames* const> parts, ThreadPool& pool) = 0;

  // Applies frames that were accepted, straight to memory. After an error any part of them may be
  // applied. DATA_LOSS, UNAVAILABLE: the spool lost bytes.
  virtual Status ApplyInPlace(const FrameSet& set, ThreadPool& pool) = 0;

  // Returns when everything written is seen by whoever reads this memory next.
  virtual Status Synchronize() = 0;
};

}  // namespace dws
