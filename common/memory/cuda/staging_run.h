// Stages one set of encoded blocks on a device: copies payloads to the device in pieces, decodes
// them there against live memory, and returns how the digests change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/device_weights.h"
#include "common/memory/staging_budget.h"

namespace dws::cuda {

// So many bytes must stay free on the device besides the staged ones: its engine may need more
// memory.
inline constexpr uint64_t kStagingSpareBytes = uint64_t{512} << 20;

// A block at one place. The fields payload, payload_bytes, staged and table of `block` are ignored:
// StagingRun sets them.
struct StageItem {
  StageBlock block;
  ByteSpan payload;
  const KernelClassTable* table = nullptr;  // needed for mode 3
  uint32_t group = 0;                       // a number that the caller chooses, for Seal
};

// Staged entries on the device, ready to commit. Moved, never copied; keeps its device open.
class StagedBlocks {
 public:
  // Whole blocks in `arena`, at absolute addresses, as one group.
  static StagedBlocks Dense(CudaBuffer arena, std::vector<CommitBlock> blocks) {
    StagedBlocks staged;
    staged.groups_.resize(blocks.size(), 0);
    staged.blocks_ = std::move(blocks);
    staged.arena_.push_back(std::move(arena));
    return staged;
  }
  // Lists on the device the blocks of the groups whose element of `kept` is not 0. Call it once.
  Status Seal(DeviceWeights& weights, std::span<const uint8_t> kept);
  // Begins to write the listed blocks. Allocates nothing.
  Status BeginCommit(DeviceWeights& weights) const {
    return weights.BeginCommit(list_.address(), count_);
  }
  uint64_t size_bytes() const;

 private:
  friend class StagingRun;

  std::vector<CudaBuffer> arena_;
  std::vector<CommitBlock> blocks_;  // empty after Seal
  std::vector<uint32_t> groups_;     // of blocks_
  CudaBuffer list_;                  // CommitBlock[count_]
  uint32_t count_ = 0;
};

// Lifecycle: call Add any number of times, then Finish once. Threads: one.
class StagingRun {
 public:
  enum class Mode : uint8_t {
    kKeep,     // keeps entries as long as they fit the budget; after that like kPredict
    kPredict,  // keeps nothing, only predicts digests
    kApply,    // writes entries to live memory at once: its owner is paused
  };

  // `weights` and `budget` (needed for kKeep) must outlive this. Result numbers are below
  // `result_count`.
  StagingRun(DeviceWeights& weights, Mode mode, size_t result_count,
             StagingBudget* budget = nullptr)
      : weights_(weights), mode_(mode), result_count_(result_count), budget_(budget) {}

  // Waits for work that still runs, because it uses this object's memory.
  ~StagingRun() { static_cast<void>(weights_.Synchronize()); }
  StagingRun(const StagingRun&) = delete;
  StagingRun& operator=(const StagingRun&) = delete;

  // Starts staging `items` and returns when their payloads are copied and may be freed. No two
  // items of a run may write the same bytes. INTERNAL, RESOURCE_EXHAUSTED: the device's errors.
  Status Add(std::span<const StageItem> items, ThreadPool& pool);

  struct Outcome {
    std::vector<KernelDigest> differences;  // by result: after minus before
    std::vector<uint32_t> failures;         // by result: blocks whose payload is damaged
    StagedBlocks staged;                    // of kKeep, unless the budget was exceeded
  };
  // Waits for all work.
  Result<Outcome> Finish();

 private:
  Status Start();
  // The sizes of one item.
  struct ItemSizes {
    uint32_t payload = 0;  // in a lane, padded
    uint32_t touched = 0;  // an estimate of the device memory that staging it reads and writes
    uint32_t staged = 0;
  };
  // The place of an item.
  struct LaidItem {
    uint64_t payload = 0;  // in the piece's payloads
    uint64_t staged = 0;
  };
  // One piece in its lane.
  struct Piece {
    WorkLane::Room blocks;
    WorkLane::Room commits;
    WorkLane::Room tables;
    WorkLane::Room payloads;
    std::vector<LaidItem> turns;  // the first item of each turn
    uint32_t class_split = 0;     // blocks of that mode
    size_t first_kept = 0;        // in staged_
  };
  // Fills sizes_ and staged_bytes_left_.
  void Measure(std::span<const StageItem> items, ThreadPool& pool);
  // Returns how many items fit one piece, at least one.
  size_t PieceOf(std::span<const ItemSizes> sizes) const;
  Status AddPiece(std::span<const StageItem> items, std::span<const ItemSizes> sizes,
                  ThreadPool& pool);
  Piece Lay(std::span<const ItemSizes> sizes, WorkLane& lane, uint64_t staged);
  void Write(const StageItem& item, size_t number, const LaidItem& laid, const Piece& piece);
  Status Launch(const WorkLane& lane, const Piece& piece, uint32_t count);
  Status GiveUpKeeping();
  // The address of `size_bytes` for the staged entries of one piece.
  Result<uint64_t> Room(WorkLane& lane, uint64_t size_bytes);

  DeviceWeights& weights_;
  Mode mode_;
  const size_t result_count_;
  StagingBudget* const budget_;
  std::optional<uint64_t> results_;  // KernelDigest[result_count_], then uint32_t[result_count_]
  StagedBlocks staged_;
  uint64_t arena_used_ = 0;         // of the last buffer
  std::vector<ItemSizes> sizes_;    // of the items that were measured last
  uint64_t staged_bytes_left_ = 0;  // that the rest of these items will need
};

}  // namespace dws::cuda
