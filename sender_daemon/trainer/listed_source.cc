// The trainer may write to its lists at any time. So each entry is loaded once, into a place that
// no other entry gets: positions are narrowed and values copied, and only the copies are checked
// and used. Which entries are a block's is decided before, for all blocks.
#include "sender_daemon/trainer/listed_source.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Blocks that a thread takes at once.
constexpr size_t kBatchBlocks = 16;

constexpr uint64_t Aligned(uint64_t bytes) {
  return CeilDiv(bytes, kListAlignment) * kListAlignment;
}

uint32_t PositionAt(ByteSpan positions, uint64_t index) {
  return LoadLe<uint32_t>(positions.data() + index * sizeof(uint32_t));
}

uint64_t ElementsOf(const Shard& shard) {
  uint64_t elements = 1;
  for (const DimRange& range : RangesOf(shard.tensor, shard.cells)) elements *= range.size();
  return elements;
}

// Index of the first entry whose position is not below `element`; if positions do not ascend, any
// index up to `count`.
uint64_t FirstFrom(ByteSpan positions, uint64_t count, uint64_t element) {
  uint64_t begin = 0;
  while (begin < count) {
    const uint64_t middle = begin + (count - begin) / 2;
    if (PositionAt(positions, middle) < element) {
      begin = middle + 1;
    } else {
      count = middle;
    }
  }
  return begin;
}

}  // namespace

uint64_t ListBytes(uint64_t count, uint32_t element_bytes) {
  return Aligned(count * sizeof(uint32_t)) + 2 * Aligned(count * element_bytes);
}

Status CheckLists(const RankLayout& layout, uint64_t memory_bytes,
                  std::span<const ListedShard> lists) {
  uint64_t all = 0;
  for (size_t i = 0; i < lists.size(); ++i) {
    const ListedShard& list = lists[i];
    if (list.shard >= layout.shards().size() || (i > 0 && list.shard <= lists[i - 1].shard)) {
      return InvalidArgumentError("list {} is of shard {}: expected shards that ascend, below {}",
                                  i, list.shard, layout.shards().size());
    }
    const Shard& shard = layout.shards()[list.shard];
    const uint64_t elements = ElementsOf(shard);
    if (list.count > elements) {
      return InvalidArgumentError("tensor '{}': its list has {} entries, the shard {} elements",
                                  shard.tensor.name, list.count, elements);
    }
    const uint64_t bytes = ListBytes(list.count, ElementBytes(shard.tensor.dtype));
    if (list.offset_bytes % kListAlignment != 0 || list.offset_bytes > memory_bytes ||
        bytes > memory_bytes - list.offset_bytes) {
      return InvalidArgumentError(
          "tensor '{}': its list of {} bytes begins at byte {}: expected a multiple of {}, within "
          "the {} bytes that were registered for lists",
          shard.tensor.name, bytes, list.offset_bytes, kListAlignment, memory_bytes);
    }
    all += bytes;
    if (all > memory_bytes) {
      return InvalidArgumentError(
          "tensor '{}': the lists up to its have {} bytes: expected at most the {} that were "
          "registered for lists, in which no two overlap",
          shard.tensor.name, all, memory_bytes);
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<ListedSource>> ListedSource::Create(ResidentSource& resident,
                                                           Snapshot& snapshot, ThreadPool& pool,
                                                           const TrainerLists& lists) {
  std::unique_ptr<ListedSource> source(new ListedSource(resident, snapshot));
  source->FindLists(resident.HostBytes(lists.region), lists.shards);
  source->FindBlocks(lists.shards);
  DWS_RETURN_IF_ERROR(source->Prove(pool));
  return source;
}

void ListedSource::FindLists(ByteSpan memory, std::span<const ListedShard> lists) {
  uint64_t copied = 0;
  for (const ListedShard& listed : lists) {
    const uint32_t bytes = ElementBytes(snapshot_.layout().shards()[listed.shard].tensor.dtype);
    const uint64_t values = listed.count * bytes;
    const uint64_t before = listed.offset_bytes + Aligned(listed.count * sizeof(uint32_t));
    lists_.push_back(
        {.count = listed.count,
         .element_bytes = bytes,
         .positions = memory.subspan(listed.offset_bytes, listed.count * sizeof(uint32_t)),
         .before = memory.subspan(before, values),
         .after = memory.subspan(before + Aligned(values), values),
         .copied_at = copied});
    copied += Aligned(listed.count * sizeof(uint16_t)) + 2 * Aligned(values);
  }
  room_ = std::make_unique_for_overwrite<std::byte[]>(copied);
}

void ListedSource::FindBlocks(std::span<const ListedShard> lists) {
  const RankLayout& layout = snapshot_.layout();
  first_block_.assign(layout.slice_count(), kNotListed);
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
    const auto listed = std::ranges::lower_bound(lists, slice.shard, {}, &ListedShard::shard);
    if (listed == lists.end() || listed->shard != slice.shard) continue;
    // Compared are strided slices, those whose digest is to be recomputed from all bytes, and those
    // of the host, where a comparison takes less time than the proof of a list.
    if (!resident_.BeginsAt(RankSlice(s)).has_value() || snapshot_.distrusts(RankSlice(s))) {
      continue;
    }
    first_block_[s] = static_cast<uint32_t>(blocks_.size());
    slices_.emplace_back(s);
    for (uint32_t block = 0; block < slice.blocks; ++block) {
      blocks_.push_back({.ref = {.slice = RankSlice(s), .block = block},
                         .list = &lists_[static_cast<size_t>(listed - lists.begin())]});
    }
  }
}

// The trainer may write meanwhile, so the parts are made disjoint here, whatever was found.
void ListedSource::Divide(ThreadPool& pool) {
  const RankLayout& layout = snapshot_.layout();
  pool.ParallelFor(CeilDiv(blocks_.size(), kBatchBlocks), [&](size_t batch, size_t) {
    const size_t end = std::min(blocks_.size(), (batch + 1) * kBatchBlocks);
    for (size_t i = batch * kBatchBlocks; i < end; ++i) {
      Block& block = blocks_[i];
      const List& list = *block.list;
      block.first_element =
          *resident_.BeginsAt(block.ref.slice) + uint64_t{block.ref.block} * limits::kBlockElements;
      block.elements = BlockElements(layout.slice(block.ref.slice).elements, block.ref.block);
      block.begin = FirstFrom(list.positions, list.count, block.first_element);
      block.end = FirstFrom(list.positions, list.count, block.first_element + block.elements);
    }
  });
  const List* list = nullptr;
  uint64_t taken = 0;  // of `list`
  for (Block& block : blocks_) {
    if (std::exchange(list, block.list) != block.list) taken = 0;
    block.begin = std::max(block.begin, taken);
    block.end = std::max(block.end, block.begin);
    taken = block.end;
  }
}

void ListedSource::Check(Block& block, ListedWords& words) {
  const List& list = *block.list;
  const uint64_t count = block.end - block.begin;
  if (count > block.elements) return;
  const uint32_t bytes = list.element_bytes;
  std::byte* const positions = room_.get() + list.copied_at + block.begin * sizeof(uint16_t);
  std::byte* const before =
      room_.get() + list.copied_at + Aligned(list.count * sizeof(uint16_t)) + block.begin * bytes;
  std::byte* const after = before + Aligned(list.count * bytes);
  for (uint64_t i = 0; i < count; ++i) {
    const uint64_t position = PositionAt(list.positions, block.begin + i);
    if (position < block.first_element || position - block.first_element >= block.elements) return;
    StoreLe(positions + i * sizeof(uint16_t),
            static_cast<uint16_t>(position - block.first_element));
  }
  std::memcpy(before, list.before.data() + block.begin * bytes, count * bytes);
  std::memcpy(after, list.after.data() + block.begin * bytes, count * bytes);
  const ListedChanges changes{.count = static_cast<uint32_t>(count),
                              .positions = {positions, count * sizeof(uint16_t)},
                              .before = {before, count * bytes},
                              .after = {after, count * bytes}};
  const RankLayout::SliceEntry& slice = snapshot_.layout().slice(block.ref.slice);
  const std::optional<Digest> difference =
      DifferenceOf(slice.dtype, changes, snapshot_.BlockBytes(block.ref.slice, block.ref.block),
                   slice.BlockFirstWord(block.ref.block), words);
  if (!difference.has_value()) return;
  block.fits = true;
  block.diffed = {.difference = *difference, .changes = changes};
}

void ListedSource::CheckAll(ThreadPool& pool) {
  const StageTime time(seconds_.check);
  Divide(pool);
  std::vector<ListedWords> words(pool.worker_count());
  pool.ParallelFor(CeilDiv(blocks_.size(), kBatchBlocks), [&](size_t batch, size_t worker) {
    const size_t end = std::min(blocks_.size(), (batch + 1) * kBatchBlocks);
    for (size_t i = batch * kBatchBlocks; i < end; ++i) Check(blocks_[i], words[worker]);
  });
}

Status ListedSource::Prove(ThreadPool& pool) {
  CheckAll(pool);
  const StageTime time(seconds_.compare);
  const std::vector<RankSlice> all = std::exchange(slices_, {});
  std::vector<Digest> wanted;  // parallel to slices_
  for (const RankSlice slice : all) {
    const auto blocks = BlocksOf(slice);
    if (!std::ranges::all_of(blocks, &Block::fits)) continue;
    Digest digest = snapshot_.digests()[slice.value()];
    for (const Block& block : blocks) digest += block.diffed.difference;
    slices_.push_back(slice);
    wanted.push_back(digest);
  }
  Result<std::vector<Digest>> live = resident_.LiveDigests(snapshot_.layout(), slices_);
  const bool short_of_memory = absl::IsResourceExhausted(live.status());
  if (!short_of_memory) DWS_RETURN_IF_ERROR(live.status());
  std::vector<RankSlice> proved;
  for (size_t i = 0; !short_of_memory && i < slices_.size(); ++i) {
    if ((*live)[i] == wanted[i]) proved.push_back(slices_[i]);
  }
  slices_ = std::move(proved);
  if (short_of_memory) {
    LogWarning("listed_changes_not_proved",
               {{"slices", all.size()},
                {"reason", fmt::format("{}; all weights are compared", Message(live.status()))}});
  } else {
    WarnOfOthers(all);
  }
  for (const RankSlice slice : all) {
    if (!std::ranges::binary_search(slices_, slice)) first_block_[slice.value()] = kNotListed;
  }
  return OkStatus();
}

void ListedSource::WarnOfOthers(std::span<const RankSlice> all) const {
  const auto differs = std::ranges::find_if(
      all, [this](RankSlice slice) { return !std::ranges::binary_search(slices_, slice); });
  if (differs == all.end()) return;
  LogWarning("listed_changes_differ",
             {{"slices", all.size() - slices_.size()},
              {"of", all.size()},
              {"tensor", snapshot_.layout().tensor(*differs).name},
              {"rank_slice", differs->value()},
              {"reason",
               "the trainer's lists do not lead from the last version to its weights: a list lacks "
               "changes, or is of another version or tensor; these slices are compared"}});
}

std::span<const ListedSource::Block> ListedSource::BlocksOf(RankSlice slice) const {
  return std::span(blocks_).subspan(first_block_[slice.value()],
                                    snapshot_.layout().slice(slice).blocks);
}

std::vector<BlockRef> ListedSource::Order() const {
  std::vector<BlockRef> refs = resident_.Order(snapshot_.layout());
  std::ranges::stable_partition(refs, [this](const BlockRef& ref) { return !Lists(ref.slice); });
  return refs;
}

Result<FetchedBlocks> ListedSource::Fetch(std::span<const BlockRef> refs, FetchAs as,
                                          Snapshot& snapshot, ThreadPool& pool) {
  DWS_CHECK(as == FetchAs::kChanges && &snapshot == &snapshot_);
  const auto first = std::ranges::find_if(
      refs, [this](const BlockRef& ref) { return Lists(ref.slice); });  // Order: the rest too
  const auto others = refs.first(static_cast<size_t>(first - refs.begin()));
  if (!others.empty()) return resident_.Fetch(others, as, snapshot, pool);
  FetchedBlocks fetched{.count = refs.size(), .listed = refs.size(), .changed = 0};
  for (const BlockRef ref : refs) *fetched.changed += Diffed(ref)->changes.count;
  fetched.seconds = std::exchange(seconds_, {});
  return fetched;
}

std::optional<DiffedBlock> ListedSource::Diffed(BlockRef ref) const {
  if (!Lists(ref.slice)) return resident_.Diffed(ref);
  return blocks_[first_block_[ref.slice.value()] + ref.block].diffed;
}

void ListedSource::UpdateCopies(ThreadPool& pool) const {
  std::vector<ListedBlock> blocks;
  for (const RankSlice slice : slices_) {
    for (const Block& block : BlocksOf(slice)) {
      blocks.push_back({.ref = block.ref, .changes = block.diffed.changes});
    }
  }
  resident_.UpdateCopies(blocks, snapshot_, pool);
}

Status CaptureResident(Capture& capture, ResidentSource& resident, Snapshot& snapshot,
                       ThreadPool& pool, const TrainerLists& lists,
                       const Capture::OnRead& on_read) {
  if (lists.shards.empty() || !capture.compares()) {
    return capture.Blocks(resident.Order(snapshot.layout()), resident, on_read);
  }
  DWS_ASSIGN_OR_RETURN(const std::unique_ptr<ListedSource> listed,
                       ListedSource::Create(resident, snapshot, pool, lists));
  DWS_RETURN_IF_ERROR(capture.Blocks(listed->Order(), *listed, on_read));
  listed->UpdateCopies(pool);
  return OkStatus();
}

}  // namespace dws
