// A trainer's weights on GPUs of which the trainer itself lists what it has changed since the last
// version, because it wrote them: then nothing is compared.
//
// A list is believed only if it is proved. Each entry has the snapshot's value before, and the
// digest of the snapshot with the changes is that of the trainer's memory, which is read once for
// it. A slice whose list does not fit is compared as if there were none. All of this happens before
// the trainer goes on, as with the lists that a GPU makes (device_shards.h).
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "sender_daemon/capture/capture.h"
#include "sender_daemon/capture/listed_changes.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/capture/weight_source.h"
#include "sender_daemon/trainer/handover.h"

namespace dws {

// The list of one shard, in memory of the trainer: u32[count], the elements' numbers in the shard,
// ascending; then count elements before, then count elements after. Each array begins at the next
// multiple of kListAlignment.
struct ListedShard {
  uint32_t shard = 0;
  uint64_t count = 0;
  uint64_t offset_bytes = 0;
};

inline constexpr uint64_t kListAlignment = 8;

// The lists of one version.
struct TrainerLists {
  uint32_t region = 0;  // of the host, in which they lie
  std::vector<ListedShard> shards;
};

// The bytes that the list of a shard takes.
uint64_t ListBytes(uint64_t count, uint32_t element_bytes);

// Checks the lists against a layout and the memory that has them. INVALID_ARGUMENT: shards do not
// ascend or are none of the layout's, a list is misaligned or outside the memory, or has more
// entries than its shard has elements, or all together take more than the memory; names the tensor.
Status CheckLists(const RankLayout& layout, uint64_t memory_bytes,
                  std::span<const ListedShard> lists);

// Lifecycle: made for one version, inside its capture; the resident source and the snapshot outlive
// it. Threads: as WeightSource.
class ListedSource final : public WeightSource {
 public:
  // Copies the lists, which were checked, and proves them. Errors as ResidentSource::LiveDigests.
  static Result<std::unique_ptr<ListedSource>> Create(ResidentSource& resident, Snapshot& snapshot,
                                                      ThreadPool& pool, const TrainerLists& lists);

  // All blocks, in the order in which they have to be captured.
  std::vector<BlockRef> Order() const;

  // Call it when all of them are captured: GPUs' copies of the snapshot get the listed changes.
  void UpdateCopies(ThreadPool& pool) const;

  Result<FetchedBlocks> Fetch(std::span<const BlockRef> refs, FetchAs as, Snapshot& snapshot,
                              ThreadPool& pool) override;
  std::optional<DiffedBlock> Diffed(BlockRef ref) const override;
  void Read(BlockRef ref, MutableByteSpan block) const override { resident_.Read(ref, block); }
  ByteSpan View(BlockRef ref, size_t size_bytes) const override {
    return resident_.View(ref, size_bytes);
  }

 private:
  // A shard's list in the trainer's memory, and the place of its copy in room_.
  struct List {
    uint64_t count = 0;
    uint32_t element_bytes = 1;
    ByteSpan positions;  // the trainer's
    ByteSpan before;
    ByteSpan after;
    uint64_t copied_at = 0;
  };
  // A block of a slice that may be listed.
  struct Block {
    BlockRef ref;
    const List* list = nullptr;
    uint64_t first_element = 0;  // of the shard
    uint32_t elements = 0;
    uint64_t begin = 0;  // of the list's entries: of no other block
    uint64_t end = 0;
    bool fits = false;
    DiffedBlock diffed;
  };

  ListedSource(ResidentSource& resident, Snapshot& snapshot)
      : resident_(resident), snapshot_(snapshot) {}
  void FindLists(ByteSpan memory, std::span<const ListedShard> lists);
  void FindBlocks(std::span<const ListedShard> lists);
  // Finds each block's part of its list.
  void Divide(ThreadPool& pool);
  // Copies a block's part of its list and checks it against the snapshot.
  void Check(Block& block, ListedWords& words);
  void CheckAll(ThreadPool& pool);
  // Leaves in slices_ those whose changes lead to the live digests.
  Status Prove(ThreadPool& pool);
  // Logs, once for the version, that not all slices are in slices_.
  void WarnOfOthers(std::span<const RankSlice> all) const;
  std::span<const Block> BlocksOf(RankSlice slice) const;
  bool Lists(RankSlice slice) const { return first_block_[slice.value()] != kNotListed; }

  static constexpr uint32_t kNotListed = ~uint32_t{0};

  ResidentSource& resident_;
  Snapshot& snapshot_;
  std::vector<List> lists_;
  std::unique_ptr<std::byte[]> room_;  // copies of the lists
  std::vector<Block> blocks_;          // by slice and block
  std::vector<RankSlice> slices_;      // of blocks_; after Prove, those that are listed
  std::vector<uint32_t> first_block_;  // in blocks_, by rank slice
  CaptureSeconds seconds_;
};

// Captures all blocks of `resident` into `snapshot`, which is the capture's. `lists` were checked,
// and are not used if no delta is made. Errors as Capture::Blocks.
Status CaptureResident(Capture& capture, ResidentSource& resident, Snapshot& snapshot,
                       ThreadPool& pool, const TrainerLists& lists, const Capture::OnRead& on_read);

}  // namespace dws
