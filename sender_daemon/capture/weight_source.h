// The place from which a capture reads current weights: the interface of the ways in which a
// trainer hands weights over (handover.h).
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/model/layout.h"
#include "sender_daemon/capture/capture_seconds.h"
#include "sender_daemon/capture/listed_changes.h"

namespace dws {

class Snapshot;

// One block of one rank slice.
struct BlockRef {
  RankSlice slice;
  uint32_t block = 0;
};

// The blocks that a source has made ready.
struct FetchedBlocks {
  size_t count = 0;       // the first so many of the requested ones
  uint64_t compared = 0;  // of these, number compared on a GPU: only changes were copied
  uint64_t copied = 0;    // of these, number copied whole from a GPU
  uint64_t listed = 0;    // of these, number whose changes the trainer has listed
  // Elements of these blocks that differ from the snapshot, if the source knows them: then it no
  // longer needs the trainer's memory.
  std::optional<uint64_t> changed;
  CaptureSeconds seconds;  // without encode
};

// What a capture needs of blocks: their changes, or all their bytes, because no delta is made of
// them.
enum class FetchAs : uint8_t { kChanges, kWhole };

// Threads: Fetch from one at a time, with no other call meanwhile; the others from several at once,
// for different blocks.
class WeightSource {
 public:
  virtual ~WeightSource() = default;

  // Makes the first of `refs` ready to be captured into `snapshot`, whose gate the caller holds: as
  // many as the source has room for, at least one. The other methods are called for those blocks
  // only, until the next Fetch. A source gets the same snapshot every time; the snapshot outlives
  // the source. With kWhole, Diffed returns nullopt for all of the blocks. Errors come from sources
  // that must copy weights first (a GPU's); after one, the version can only be undone.
  virtual Result<FetchedBlocks> Fetch(std::span<const BlockRef> refs, FetchAs as,
                                      Snapshot& snapshot, ThreadPool& pool) {
    (void)as;
    (void)snapshot;
    (void)pool;
    return FetchedBlocks{.count = refs.size()};
  }

  // What changed in a block since the snapshot, if the source has compared the two; then the block
  // is neither read nor viewed. Valid until the next Fetch.
  virtual std::optional<DiffedBlock> Diffed(BlockRef ref) const {
    (void)ref;
    return std::nullopt;
  }

  // Copies the current bytes of one block, in slice order, to `block` (exactly its size). Each word
  // of the trainer's memory is loaded once, so that delta, digest and snapshot agree even if the
  // trainer writes meanwhile.
  virtual void Read(BlockRef ref, MutableByteSpan block) const = 0;

  // Returns the trainer's own `size_bytes` bytes of one block, if they are contiguous in slice
  // order. Otherwise returns an empty span, and the caller must Read the block. The caller must
  // load each byte only once.
  virtual ByteSpan View(BlockRef ref, size_t size_bytes) const = 0;
};

}  // namespace dws
