// Staging of one set of encoded blocks on a device: payloads go over in pieces, kernels decode them
// against live memory, and what comes back is how the digests change.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/memory/cuda/device_weights.h"
#include "common/memory/staging_budget.h"

namespace dws::cuda {

// A block at one place. Of `block`, `payload`, `staged` and `table` are not used: they are set on
// the way.
struct StageItem {
  StageBlock block;
  ByteSpan payload;
  const KernelClassTable* table = nullptr;  // mode 3 needs it
  uint32_t group = 0;                       // the caller's; for StagedBlocks::Seal
};

// Staged entries on the device, ready to be committed. Moved, never copied; keeps its device open.
class StagedBlocks {
 public:
  // Lists on the device the blocks of those groups whose element of `kept` is not 0. Once.
  Status Seal(DeviceWeights& weights, std::span<const uint8_t> kept);
  // Begins to write them. Allocates nothing.
  Status BeginCommit(DeviceWeights& weights) const {
    return weights.BeginCommit(list_.address(), count_);
  }
  uint64_t size_bytes() const;

 private:
  friend class StagingRun;

  std::vector<CudaBuffer> arena_;
  std::vector<CommitBlock> blocks_;  // none once sealed
  std::vector<uint32_t> groups_;     // of those
  CudaBuffer list_;                  // CommitBlock[count_]
  uint32_t count_ = 0;
};

// Lifecycle: Add any number of times, Finish once. Threads: one.
class StagingRun {
 public:
  enum class Mode : uint8_t {
    kKeep,     // entries stay, as long as the budget has room for them
    kPredict,  // nothing stays, only digests are predicted
    kApply,    // entries go to live memory at once: their owner is paused
  };

  // `weights` and `budget` (kKeep needs one) outlive this. Results are numbered below
  // `result_count`.
  StagingRun(DeviceWeights& weights, Mode mode, size_t result_count,
             StagingBudget* budget = nullptr)
      : weights_(weights), mode_(mode), result_count_(result_count), budget_(budget) {}

  // Waits for what is still on its way: nothing it uses may go before.
  ~StagingRun() { static_cast<void>(weights_.Synchronize()); }
  StagingRun(const StagingRun&) = delete;
  StagingRun& operator=(const StagingRun&) = delete;

  // Sends `items` on their way; returns when their payloads may go. No two items of a run write the
  // same bytes. INTERNAL, RESOURCE_EXHAUSTED: the device's.
  Status Add(std::span<const StageItem> items, ThreadPool& pool);

  struct Outcome {
    std::vector<KernelDigest> differences;  // by result: after minus before
    std::vector<uint32_t> failures;         // by result: blocks whose payload is damaged
    StagedBlocks staged;                    // kKeep, unless the budget passed
  };
  // Waits for all of it.
  Result<Outcome> Finish();

 private:
  Status Start();
  // One piece in its lane.
  struct LaidItem {
    WorkLane::Room payload;
    uint64_t staged = 0;
  };
  struct Piece {
    WorkLane::Room blocks;
    WorkLane::Room commits;
    WorkLane::Room tables;
    std::vector<LaidItem> items;
  };
  // How many of `items` go in one piece, at least one.
  size_t PieceOf(std::span<const StageItem> items) const;
  Status AddPiece(std::span<const StageItem> items, ThreadPool& pool);
  Piece Lay(std::span<const StageItem> items, WorkLane& lane, uint64_t staged);
  void Write(const StageItem& item, size_t number, const Piece& piece);
  Status Launch(const WorkLane& lane, const Piece& piece, uint32_t count);
  Status GiveUpKeeping();
  // `size_bytes` for staged entries of one piece.
  Result<uint64_t> Room(WorkLane& lane, uint64_t size_bytes);

  DeviceWeights& weights_;
  Mode mode_;
  const size_t result_count_;
  StagingBudget* const budget_;
  std::optional<uint64_t> results_;  // KernelDigest[result_count_], then uint32_t[result_count_]
  StagedBlocks staged_;
  uint64_t arena_used_ = 0;  // of the last buffer
};

}  // namespace dws::cuda
