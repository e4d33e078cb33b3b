// Reads full tensors at exactly one version from a snapshot that moves on. Between captures it
// copies a few blocks at a time straight into frames, then undoes the retained steps of newer
// versions in the copy. The trainer waits at most for one such copy. If a full version has
// overwritten the snapshot, it reads the blocks that were kept for it (capture/full/open_reads.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/memory/own_pages.h"
#include "common/model/block_range.h"
#include "common/model/delta_manifest.h"
#include "common/model/layout.h"
#include "sender_daemon/capture/full/open_reads.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/publish/delta_log.h"

namespace dws {

// One frame of absolute blocks, ready to send.
struct FullFrame {
  RankSlice slice;
  FrameEntry entry;  // offset unused
  ByteSpan bytes;    // memory of the reader
  ByteSpan content;  // the part of `bytes` that holds the blocks' contents, one after the other
};

// Lifecycle: one per transfer; shares snapshot and log, and owns the memory of its frames, a few
// MiB. Threads: one at a time.
class FullReader {
 public:
  // `ranges` are inside the layout, in the order in which they are read.
  FullReader(std::shared_ptr<Snapshot> snapshot, std::shared_ptr<DeltaLog> log,
             WeightVersion version, std::vector<BlockRange> ranges);

  // From now on reads only these ranges, which must be parts of the present ones.
  void Only(std::vector<BlockRange> ranges);
  // The caller no longer needs anything before this place of `ranges`: captures need not keep it.
  void Passed(size_t range, uint32_t offset) { read_.Passed(range, offset); }
  // Holds the newer versions that are retained now, so that this version stays in reach.
  void Hold();

  // Returns the next frames, about as many as one read of the snapshot covers; empty at the end.
  // Valid until the next call. ABORTED: the version can no longer be reached from the snapshot;
  // take a newer one. DEADLINE_EXCEEDED: call it again, nothing is skipped.
  Result<std::vector<FullFrame>> Next(Duration timeout);
  // Like Next, without a deadline. CANCELLED: `wanted`, which is called repeatedly, returned false.
  Result<std::vector<FullFrame>> NextWhile(const std::function<bool()>& wanted);

 private:
  // A frame in the making.
  struct Piece {
    RankSlice slice;
    uint32_t first_block = 0;
    uint32_t block_count = 0;
    ByteSpan frame;
    MutableByteSpan payloads;  // in the frame: the blocks' bytes, one after the other
  };
  std::vector<Piece> TakePieces();
  Result<std::vector<FullFrame>> ReadPieces(const std::vector<Piece>& pieces, Duration timeout);
  // Copies the blocks of `pieces` from the snapshot, or from what was kept; returns the version
  // they are of.
  Result<WeightVersion> Copy(const std::vector<Piece>& pieces, Duration timeout) const;
  Status ExtendChain(WeightVersion snapshot_version, Duration timeout);
  Status Undo(const Piece& piece) const;

  const std::shared_ptr<Snapshot> snapshot_;
  const std::shared_ptr<DeltaLog> log_;
  const WeightVersion version_;
  std::vector<BlockRange> ranges_;
  bool narrowed_ = false;  // ranges_ are no longer all that may be read
  OpenReads::Read read_;
  // Every version after `version_` that the snapshot has been seen at. Holding them here lets a
  // transfer finish even if it takes longer than the log retains them.
  std::vector<RetainedVersionPtr> chain_;
  const OwnPages memory_;
  size_t next_range_ = 0;     // index in ranges_
  uint32_t next_offset_ = 0;  // in blocks, in that range
};

}  // namespace dws
