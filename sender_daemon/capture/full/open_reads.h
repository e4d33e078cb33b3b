// Full versions overwrite the snapshot, and no steps lead back. So that a reader of full tensors
// can still finish its transfer, the capture of a full version first copies the old bytes of the
// blocks that readers of the version before have not read yet.
//
// KeptBlocks are the copies of one capture, OpenReads the readers of one snapshot. Without readers
// nothing is kept. A reader may also come too late, if the trainer publishes full versions so fast
// that each is overwritten before anybody reads it. After a reader was refused for that reason, the
// next captures keep whole versions, so that the next attempt succeeds.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <list>
#include <memory>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/memory/own_pages.h"
#include "common/model/block_range.h"
#include "common/model/layout.h"
#include "common/model/limits.h"
#include "common/model/weight_version.h"

namespace dws {

// Old bytes of some blocks of a snapshot. Lifecycle: the capture keeps each wanted block, then
// closes it; readers read it after that. Threads: several may call Keep, for different blocks; the
// other methods are safe from any.
class KeptBlocks {
 public:
  // `wanted`: by rank block number. `held`: the bytes of all that live, in which this takes part.
  KeptBlocks(const RankLayout& layout, WeightVersion version, const std::vector<uint8_t>& wanted,
             std::shared_ptr<std::atomic<uint64_t>> held);
  ~KeptBlocks();
  KeptBlocks(const KeptBlocks&) = delete;
  KeptBlocks& operator=(const KeptBlocks&) = delete;

  // The version of these bytes.
  WeightVersion version() const { return version_; }

  // Returns whether block `number` is wanted and not kept yet.
  bool Wants(uint64_t number) const;
  // Copies it, if it is wanted and not kept yet.
  void Keep(uint64_t number, ByteSpan bytes);
  void Close() { closed_.store(true); }
  bool closed() const { return closed_.load(); }

  // The bytes of a block that is kept. Only after Close.
  ByteSpan Block(uint64_t number, size_t size_bytes) const;

 private:
  const WeightVersion version_;
  // By rank block number; for blocks that are not wanted: above all others.
  std::vector<uint64_t> offsets_;
  std::vector<uint8_t> kept_;  // by rank block number
  uint64_t size_bytes_ = 0;
  std::shared_ptr<std::atomic<uint64_t>> held_;
  OwnPages memory_;
  std::atomic<bool> closed_{false};
};

// The readers of one snapshot. Lifecycle: lives as long as the snapshot. Threads: safe from any.
class OpenReads {
 private:
  struct Entry {
    WeightVersion version;
    std::vector<BlockRange> ranges;
    size_t next_range = 0;     // in `ranges`
    uint32_t next_offset = 0;  // in blocks, in that range
    std::shared_ptr<KeptBlocks> kept;
  };

 public:
  // After a reader was refused so many captures keep whole versions, and all in this time: the
  // reader tries again after limits::kReconnectDelayMax at most.
  static constexpr uint32_t kKeepAllVersions = 4;
  static constexpr Duration kKeepAllTime = 5 * limits::kReconnectDelayMax;

  // All that is kept at a time takes at most `bytes_max`.
  OpenReads(const RankLayout& layout, uint64_t bytes_max, Duration keep_all_time = kKeepAllTime)
      : layout_(layout), bytes_max_(bytes_max), keep_all_time_(keep_all_time) {}

  // One open read. Must not outlive OpenReads.
  class Read {
   public:
    Read(OpenReads& reads, WeightVersion version, const std::vector<BlockRange>& ranges);
    ~Read();
    Read(const Read&) = delete;
    Read& operator=(const Read&) = delete;

    // What lies before this block of `ranges[range]` was read.
    void Passed(size_t range, uint32_t offset);
    // Returns the blocks that were kept for it: all that it has not read. Null: nothing was kept,
    // it reads the snapshot.
    std::shared_ptr<const KeptBlocks> kept() const;

   private:
    OpenReads& reads_;
    std::list<Entry>::iterator entry_;
  };

  // The bytes of all that is kept now.
  uint64_t held_bytes() const { return held_->load(); }

  // A version's full tensors could not be read, because the snapshot has gone on.
  void Refused();

  // The capture of a full version calls it before it overwrites the first block of `version`. If
  // there is not enough room for all readers, those that have waited longest come first. Null:
  // nothing is to be kept.
  std::shared_ptr<KeptBlocks> BeginOverwrite(WeightVersion version);
  // Called by other captures: what was kept for readers that had not come yet is dropped.
  void DropSpare();

 private:
  // Marks what `entry` has yet to read; returns the bytes that this adds.
  uint64_t MarkLeft(const Entry& entry, std::vector<uint8_t>& wanted) const REQUIRES(mutex_);

  const RankLayout& layout_;
  const uint64_t bytes_max_;
  const Duration keep_all_time_;
  const std::shared_ptr<std::atomic<uint64_t>> held_ = std::make_shared<std::atomic<uint64_t>>(0);
  mutable Mutex mutex_;
  std::list<Entry> entries_ GUARDED_BY(mutex_);  // oldest first
  uint32_t keep_all_ GUARDED_BY(mutex_) = 0;     // captures
  std::chrono::steady_clock::time_point keep_all_until_ GUARDED_BY(mutex_);
  std::shared_ptr<KeptBlocks> spare_ GUARDED_BY(mutex_);  // a whole version
};

}  // namespace dws
