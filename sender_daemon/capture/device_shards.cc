#include "sender_daemon/capture/device_shards.h"

#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/delta/bits/element.h"

namespace dws {
namespace {

// The most blocks in a window: their descriptions fit a lane.
constexpr size_t kWindowBlocksMax = 16'384;
// Two MiB are for the segments of windows up to 4 GiB.
static_assert(kWindowBlocksMax * sizeof(cuda::DiffBlock) <= cuda::WorkLane::kBytesMax - (2 << 20));
static_assert(kWindowBlocksMax * sizeof(cuda::GatherBlock) <= cuda::WorkLane::kBytesMax);
// Alignment of a copied block in copied_: a gather writes at least as many bytes.
constexpr uint64_t kAlignment = 64;
// Offset of DiffResult[], after the number of arena bytes used.
constexpr uint64_t kResultsAt = 16;
constexpr uint64_t kResultsBytes = kResultsAt + kWindowBlocksMax * sizeof(cuda::DiffResult);
// Blocks that a thread checks at once.
constexpr size_t kBatchBlocks = 16;

// The room of a window that is copied whole.
uint64_t HalfOf(const DeviceShardsOptions& options) { return options.window_bytes / 2; }

constexpr uint64_t Padded(uint64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; }

std::vector<RankSlice> SlicesOf(const std::vector<DeviceShards::SlicePlace>& places) {
  std::vector<RankSlice> slices;
  for (const auto& [slice, place] : places) slices.push_back(slice);
  return slices;
}

// Elements in which the two differ.
uint64_t CountDiffering(DType dtype, ByteSpan a, ByteSpan b) {
  return WithElement(dtype, [&](auto element) {
    using Bits = typename decltype(element)::Bits;
    uint64_t count = 0;
    for (size_t at = 0; at + sizeof(Bits) <= a.size(); at += sizeof(Bits)) {
      count += LoadLe<Bits>(a.data() + at) != LoadLe<Bits>(b.data() + at) ? 1 : 0;
    }
    return count;
  });
}

// The rank's number of a block.
uint64_t NumberOf(const Snapshot& snapshot, BlockRef ref) {
  return snapshot.layout().slice(ref.slice).first_block + ref.block;
}

cuda::DiffResult ResultOf(ByteSpan results, size_t index) {
  cuda::DiffResult result;
  std::memcpy(&result, results.data() + kResultsAt + index * sizeof(result), sizeof(result));
  return result;
}

}  // namespace

DeviceShards::DeviceShards(cuda::CudaDevicePtr device, const std::vector<SlicePlace>& places,
                           const DeviceShardsOptions& options)
    : device_(std::move(device)),
      options_(options),
      base_(device_, SlicesOf(places), options.spare_bytes, options.left_copies) {
  for (const auto& [slice, place] : places) {
    DWS_CHECK(slice.value() >= place_of_.size());  // slices ascend
    place_of_.resize(slice.value() + 1, kNoPlace);
    place_of_.back() = static_cast<uint32_t>(places_.size());
    places_.push_back(place);
  }
}

Status DeviceShards::TakeMemory(Snapshot& snapshot) {
  DWS_CHECK(snapshot_ == nullptr || snapshot_ == &snapshot);
  snapshot_ = &snapshot;
  if (has_memory_) return OkStatus();
  uint64_t weights = 0;
  for (const RankSlice slice : base_.slices())
    weights += snapshot_->layout().slice(slice).size_bytes();
  const uint64_t lists = std::max(std::min(weights / options_.list_part, options_.list_bytes_max),
                                  options_.arena_bytes);
  for (Lane& lane : lanes_) {
    DWS_ASSIGN_OR_RETURN(lane.work, cuda::WorkLane::Create(*device_));
    DWS_ASSIGN_OR_RETURN(lane.device_results, device_->Allocate(kResultsBytes));
    DWS_ASSIGN_OR_RETURN(lane.device_arena, device_->Allocate(options_.arena_bytes));
    DWS_ASSIGN_OR_RETURN(lane.results, device_->AllocatePinned(kResultsBytes));
  }
  DWS_ASSIGN_OR_RETURN(device_places_, device_->Allocate(places_.size() * sizeof(cuda::Place)));
  DWS_ASSIGN_OR_RETURN(lists_, device_->AllocatePinned(lists));
  DWS_ASSIGN_OR_RETURN(copied_, device_->AllocatePinned(options_.window_bytes));
  const cuda::CudaStream& stream = lanes_[0].work.stream();
  DWS_RETURN_IF_ERROR(
      stream.CopyToDevice(device_places_.address(), std::as_bytes(std::span(places_))));
  DWS_RETURN_IF_ERROR(stream.Synchronize());
  has_memory_ = true;
  return OkStatus();
}

Result<FetchedBlocks> DeviceShards::Fetch(std::span<const BlockRef> refs, FetchAs as,
                                          Snapshot& snapshot, ThreadPool& pool) {
  DWS_CHECK(snapshot_ == nullptr || snapshot_ == &snapshot);
  DWS_CHECK(windows_.empty() || as == as_);
  snapshot_ = &snapshot;
  as_ = as;
  index_of_.resize(snapshot.layout().block_count());
  Result<FetchedBlocks> fetched = FetchWindows(refs, pool);
  if (fetched.ok()) return fetched;
  base_.Distrust();
  // Wait for the GPU, so that nothing reads the weights once the trainer has the error.
  for (const Lane& lane : lanes_) {
    if (lane.work.stream().is_open()) (void)lane.work.stream().Synchronize();
  }
  windows_.clear();
  return Annotate(fetched.status(), fmt::format("the weights on {} ({}) cannot be captured",
                                                device_->uuid(), device_->name()));
}

Result<FetchedBlocks> DeviceShards::FetchWindows(std::span<const BlockRef> refs, ThreadPool& pool) {
  DWS_RETURN_IF_ERROR(TakeMemory(*snapshot_));
  DWS_RETURN_IF_ERROR(base_.Prepare(*snapshot_, lanes_[0].work.stream(), copied_.host_bytes(), pool,
                                    windows_.empty()));
  DropReady();
  DWS_CHECK(blocks_.size() <= refs.size());  // those on their way are the first of `refs`
  for (Lane& lane : lanes_) {
    const bool free = std::ranges::none_of(
        windows_, [&lane](const Window& window) { return window.lane == &lane; });
    if (free) DWS_RETURN_IF_ERROR(Launch(refs.subspan(blocks_.size()), lane));
  }
  while (!windows_.empty()) {
    const Window& next = windows_.front();
    DWS_RETURN_IF_ERROR(Await(next));
    if (as_ == FetchAs::kWhole) {  // the caller stores it while the next one crosses the bus
      ready_ = next.end;
      windows_.pop_front();
      break;
    }
    const bool room = lists_used_ + ListBytes(next) <= lists_.size_bytes() &&
                      copied_used_ + CopyBytes(next) <= copied_.size_bytes();
    if (!room) break;
    const Window window = std::move(windows_.front());
    windows_.pop_front();
    DWS_RETURN_IF_ERROR(Bring(window, refs, pool));
    ready_ = window.end;
  }
  DWS_CHECK(ready_ > 0);  // each window has room alone
  FetchedBlocks fetched{.count = ready_, .seconds = seconds_};
  for (const Block& block : std::span(blocks_).first(ready_)) {
    ++(block.listed ? fetched.compared : fetched.copied);
  }
  if (as_ == FetchAs::kChanges && ready_ == refs.size()) {
    const StageTime time(fetched.seconds.check);
    fetched.changed = CountChanged(pool);
  }
  return fetched;
}

void DeviceShards::DropReady() {
  blocks_.erase(blocks_.begin(), blocks_.begin() + static_cast<ptrdiff_t>(ready_));
  if (windows_.empty()) blocks_.clear();  // also what an earlier Fetch failed with
  for (Window& window : windows_) {
    window.begin -= ready_;
    window.end -= ready_;
    for (uint32_t& index : window.compared) index -= static_cast<uint32_t>(ready_);
  }
  for (size_t i = 0; i < blocks_.size(); ++i) {
    index_of_[NumberOf(*snapshot_, blocks_[i].ref)] = static_cast<uint32_t>(i);
  }
  ready_ = 0;
  lists_used_ = 0;
  copied_used_ = 0;
  more_copied_.clear();
  seconds_ = {};
}

// If changes are wanted, all blocks are compared except those of distrusted slices: the digest of
// such a slice is recomputed from the host's bytes, so all of these must come from the trainer.
Status DeviceShards::Launch(std::span<const BlockRef> refs, Lane& lane) {
  Window window{.begin = blocks_.size(), .lane = &lane};
  const uint64_t bytes_max = as_ == FetchAs::kWhole ? HalfOf(options_) : options_.window_bytes;
  uint64_t bytes = 0;
  for (const BlockRef ref : refs) {
    const uint64_t size = snapshot_->BlockBytes(ref.slice, ref.block).size();
    DWS_CHECK(Has(ref.slice) && Padded(size) <= bytes_max);
    bytes += Padded(size);
    if (blocks_.size() - window.begin == kWindowBlocksMax || bytes > bytes_max) break;
    const auto index = static_cast<uint32_t>(blocks_.size());
    index_of_[NumberOf(*snapshot_, ref)] = index;
    blocks_.push_back({.ref = ref, .size_bytes = size, .copied = {}, .diffed = {}});
    if (as_ == FetchAs::kChanges && !snapshot_->distrusts(ref.slice)) {
      window.compared.push_back(index);
    }
  }
  window.end = blocks_.size();
  if (window.end == window.begin) return OkStatus();
  windows_.push_back(std::move(window));
  return as_ == FetchAs::kWhole ? CopyWindow(windows_.back()) : Compare(windows_.back());
}

// Each lane has its half of copied_.
Status DeviceShards::CopyWindow(const Window& window) {
  std::vector<uint32_t> blocks(window.end - window.begin);
  std::iota(blocks.begin(), blocks.end(), static_cast<uint32_t>(window.begin));
  const uint64_t at = window.lane == &lanes_[0] ? 0 : HalfOf(options_);
  return BeginCopy(blocks,
                   {copied_.host_bytes().subspan(at, HalfOf(options_)), copied_.address() + at},
                   *window.lane);
}

// Puts the input of dws_diff into the lane. Compare sends it to the GPU.
cuda::DiffArgs DeviceShards::DescribeComparison(const Window& window) {
  const std::vector<uint32_t>& blocks = window.compared;
  Lane& lane = *window.lane;
  const cuda::WorkLane::Room room = lane.work.Put(blocks.size() * sizeof(cuda::DiffBlock));
  std::vector<uint32_t> segments;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const BlockRef ref = blocks_[blocks[i]].ref;
    const RankLayout::SliceEntry& slice = snapshot_->layout().slice(ref.slice);
    const cuda::DiffBlock block{
        .snapshot = base_.Address(*snapshot_, ref),
        .first_element = uint64_t{ref.block} * limits::kBlockElements,
        .first_word = slice.BlockFirstWord(ref.block),
        .elements = BlockElements(slice.elements, ref.block),
        .place = place_of_[ref.slice.value()],
        .first_segment = static_cast<uint32_t>(segments.size()),
        .element = {
            .bytes = static_cast<uint8_t>(ElementBytes(slice.dtype)),
            .is_float = MappingOf(slice.dtype) == Mapping::kFloat ? uint8_t{1} : uint8_t{0}}};
    std::memcpy(room.host.data() + i * sizeof(block), &block, sizeof(block));
    segments.resize(segments.size() + cuda::DiffSegments(block.elements, block.element.bytes),
                    static_cast<uint32_t>(i));
  }
  DWS_CHECK(cuda::DiffWorkBytes(blocks.size(), segments.size()) < cuda::WorkLane::kScratchBytes);
  const cuda::WorkLane::Room segments_room = lane.work.Put(segments.size() * sizeof(uint32_t));
  std::memcpy(segments_room.host.data(), segments.data(), segments.size() * sizeof(uint32_t));
  return {.blocks = room.address,
          .segments = segments_room.address,
          .places = device_places_.address(),
          .results = lane.device_results.address() + kResultsAt,
          .arena = lane.device_arena.address(),
          .arena_bytes = options_.arena_bytes,
          .arena_used = lane.device_results.address(),
          .work = lane.work.scratch(),
          .work_bytes = cuda::WorkLane::kScratchBytes,
          .block_count = static_cast<uint32_t>(blocks.size()),
          .segment_count = static_cast<uint32_t>(segments.size()),
          .dense_above = options_.dense_above,
          .update = base_.is_copy() ? 1U : 0U};
}

// Starts the comparison.
Status DeviceShards::Compare(const Window& window) {
  if (window.compared.empty()) return OkStatus();
  Lane& lane = *window.lane;
  DWS_RETURN_IF_ERROR(lane.work.Begin());
  const cuda::DiffArgs args = DescribeComparison(window);
  const cuda::CudaStream& stream = lane.work.stream();
  DWS_RETURN_IF_ERROR(lane.work.Send());
  DWS_RETURN_IF_ERROR(stream.Zero(lane.device_results.address(), kResultsAt));
  DWS_RETURN_IF_ERROR(stream.Zero(args.work, cuda::DiffZeroBytes(args.block_count)));
  DWS_RETURN_IF_ERROR(stream.Launch(cuda::Kernel::kDiff, args, args.segment_count));
  DWS_RETURN_IF_ERROR(stream.Launch(cuda::Kernel::kDiffList, args, args.segment_count));
  return stream.CopyToHost(
      lane.results.host_bytes().first(kResultsAt + args.block_count * sizeof(cuda::DiffResult)),
      lane.device_results.address());
}

Status DeviceShards::Await(const Window& window) {
  const bool whole = as_ == FetchAs::kWhole;
  const StageTime time(whole ? seconds_.copy : seconds_.compare);
  const bool idle = !whole && window.compared.empty();
  return idle ? OkStatus() : window.lane->work.stream().Synchronize();
}

// The counter includes requests that did not fit, so it can exceed the arena.
uint64_t DeviceShards::ListBytes(const Window& window) const {
  if (window.compared.empty()) return 0;
  return std::min(LoadLe<uint64_t>(window.lane->results.host_bytes().data()), options_.arena_bytes);
}

uint64_t DeviceShards::CopyBytes(const Window& window) const {
  uint64_t bytes = 0;
  for (size_t i = window.begin; i < window.end; ++i) bytes += Padded(blocks_[i].size_bytes);
  for (size_t i = 0; i < window.compared.size(); ++i) {
    if (ResultOf(window.lane->results.host_bytes(), i).listed == 0) continue;
    bytes -= Padded(blocks_[window.compared[i]].size_bytes);
  }
  return bytes;
}

Status DeviceShards::Bring(const Window& window, std::span<const BlockRef> refs, ThreadPool& pool) {
  Lane& lane = *window.lane;
  const MutableByteSpan lists = lists_.host_bytes().subspan(lists_used_, ListBytes(window));
  lists_used_ += Padded(lists.size());
  {
    const StageTime time(seconds_.lists);
    DWS_RETURN_IF_ERROR(lane.work.stream().CopyToHost(lists, lane.device_arena.address()));
    DWS_RETURN_IF_ERROR(lane.work.stream().Synchronize());
  }
  std::vector<uint32_t> whole;
  auto compared = window.compared.begin();
  for (auto i = static_cast<uint32_t>(window.begin); i < window.end; ++i) {
    const bool was_compared = compared != window.compared.end() && *compared == i;
    const size_t result = static_cast<size_t>(compared - window.compared.begin());
    if (was_compared) ++compared;
    if (was_compared && ResultOf(lane.results.host_bytes(), result).listed != 0) continue;
    whole.push_back(i);
  }
  DWS_RETURN_IF_ERROR(CopyWhole(whole, lane));
  // The next comparison overwrites the results.
  std::vector<cuda::DiffResult> results(window.compared.size());
  for (size_t i = 0; i < results.size(); ++i) results[i] = ResultOf(lane.results.host_bytes(), i);
  DWS_RETURN_IF_ERROR(Launch(refs.subspan(blocks_.size()), lane));
  return CopyWhole(CheckFindings(window, results, lists, pool), lane);
}

std::vector<uint32_t> DeviceShards::CheckFindings(const Window& window,
                                                  std::span<const cuda::DiffResult> results,
                                                  ByteSpan lists, ThreadPool& pool) {
  const StageTime time(seconds_.check);
  std::vector<ListedWords> words(pool.worker_count());
  pool.ParallelFor(CeilDiv(results.size(), kBatchBlocks), [&](size_t batch, size_t worker) {
    const size_t end = std::min(results.size(), (batch + 1) * kBatchBlocks);
    for (size_t i = batch * kBatchBlocks; i < end; ++i) {
      CheckFinding(results[i], lists, blocks_[window.compared[i]], words[worker]);
    }
  });
  std::vector<uint32_t> differing;
  for (size_t i = 0; i < results.size(); ++i) {
    const uint32_t index = window.compared[i];
    if (results[i].listed != 0 && !blocks_[index].listed) differing.push_back(index);
  }
  if (differing.empty()) return differing;
  const BlockRef ref = blocks_[differing.front()].ref;
  LogWarning("gpu_snapshot_differs",
             {{"gpu", device_->uuid()},
              {"blocks", differing.size()},
              {"tensor", snapshot_->layout().tensor(ref.slice).name},
              {"rank_slice", ref.slice.value()},
              {"block", ref.block},
              {"reason",
               "the changes on the GPU since the last version do not fit the snapshot: memory of "
               "one of the two is damaged; these blocks are copied whole"}});
  return differing;
}

// Leaves the block as one that is not listed if these are not changes of the host's.
void DeviceShards::CheckFinding(const cuda::DiffResult& result, ByteSpan lists, Block& block,
                                ListedWords& words) const {
  if (result.listed == 0) return;  // many changes: it is copied whole
  const RankLayout::SliceEntry& slice = snapshot_->layout().slice(block.ref.slice);
  const uint64_t element_bytes = ElementBytes(slice.dtype);
  const uint64_t positions = cuda::StagedPositionsBytes(result.changes);
  const uint64_t values = CeilDiv(result.changes * element_bytes, 8) * 8;
  if (result.changes > limits::kBlockElements || result.at > lists.size() ||
      positions + 2 * values > lists.size() - result.at) {
    return;
  }
  const ByteSpan listed = lists.subspan(result.at, positions + 2 * values);
  const ListedChanges changes{
      .count = result.changes,
      .positions = listed.first(result.changes * sizeof(uint16_t)),
      .before = listed.subspan(positions, result.changes * element_bytes),
      .after = listed.subspan(positions + values, result.changes * element_bytes)};
  const std::optional<Digest> difference =
      DifferenceOf(slice.dtype, changes, snapshot_->BlockBytes(block.ref.slice, block.ref.block),
                   slice.BlockFirstWord(block.ref.block), words);
  const Digest seen{.lane0 = result.difference.lane0, .lane1 = result.difference.lane1};
  if (difference != seen) return;
  block.listed = true;
  block.diffed = {.difference = seen, .changes = changes};
}

Status DeviceShards::CopyWhole(std::span<const uint32_t> blocks, Lane& lane) {
  if (blocks.empty()) return OkStatus();
  const StageTime time(seconds_.copy);
  DWS_ASSIGN_OR_RETURN(const CopyRoom room, RoomFor(blocks));
  DWS_RETURN_IF_ERROR(BeginCopy(blocks, room, lane));
  return lane.work.stream().Synchronize();
}

// Writes to the GPU's copy of the snapshot first, so that both get exactly the same bytes.
Status DeviceShards::BeginCopy(std::span<const uint32_t> blocks, const CopyRoom& room, Lane& lane) {
  DWS_RETURN_IF_ERROR(lane.work.Begin());
  const cuda::WorkLane::Room input = lane.work.Put(blocks.size() * sizeof(cuda::GatherBlock));
  uint64_t at = 0;
  for (size_t i = 0; i < blocks.size(); ++i) {
    Block& to = blocks_[blocks[i]];
    const RankLayout::SliceEntry& slice = snapshot_->layout().slice(to.ref.slice);
    const cuda::GatherBlock block{
        .target = base_.is_copy() ? base_.Address(*snapshot_, to.ref) : room.address + at,
        .first_element = uint64_t{to.ref.block} * limits::kBlockElements,
        .elements = BlockElements(slice.elements, to.ref.block),
        .place = place_of_[to.ref.slice.value()],
        .element_bytes = static_cast<uint8_t>(ElementBytes(slice.dtype))};
    std::memcpy(input.host.data() + i * sizeof(block), &block, sizeof(block));
    to.copied = room.host.subspan(at, to.size_bytes);
    at += Padded(to.size_bytes);
  }
  DWS_RETURN_IF_ERROR(lane.work.Send());
  DWS_RETURN_IF_ERROR(lane.work.stream().Launch(
      cuda::Kernel::kGather,
      cuda::GatherArgs{.blocks = input.address,
                       .places = device_places_.address(),
                       .block_count = static_cast<uint32_t>(blocks.size())},
      blocks.size()));
  return base_.is_copy() ? BringGathered(blocks, room.host, lane.work.stream()) : OkStatus();
}

// Returns room in copied_. If that is full because lists did not fit the snapshot, allocates
// memory.
Result<DeviceShards::CopyRoom> DeviceShards::RoomFor(std::span<const uint32_t> blocks) {
  uint64_t size = 0;
  for (const uint32_t index : blocks) size += Padded(blocks_[index].size_bytes);
  if (copied_used_ + size <= copied_.size_bytes()) {
    const uint64_t at = std::exchange(copied_used_, copied_used_ + size);
    return CopyRoom{copied_.host_bytes().subspan(at, size), copied_.address() + at};
  }
  DWS_ASSIGN_OR_RETURN(cuda::CudaBuffer more, device_->AllocatePinned(size));
  more_copied_.push_back(std::move(more));
  return CopyRoom{more_copied_.back().host_bytes(), more_copied_.back().address()};
}

Status DeviceShards::BringGathered(std::span<const uint32_t> blocks, MutableByteSpan room,
                                   const cuda::CudaStream& stream) const {
  uint64_t at = 0;
  for (size_t i = 0; i < blocks.size();) {
    const uint64_t address = base_.Address(*snapshot_, blocks_[blocks[i]].ref);
    uint64_t size = Padded(blocks_[blocks[i]].size_bytes);
    // Blocks that are adjacent in the copy are copied together.
    for (++i; i < blocks.size(); ++i) {
      if (base_.Address(*snapshot_, blocks_[blocks[i]].ref) != address + size) break;
      size += Padded(blocks_[blocks[i]].size_bytes);
    }
    DWS_RETURN_IF_ERROR(stream.CopyToHost(room.subspan(at, size), address));
    at += size;
  }
  return OkStatus();
}

uint64_t DeviceShards::CountChanged(ThreadPool& pool) const {
  std::vector<uint32_t> copied;
  uint64_t listed = 0;
  for (uint32_t i = 0; i < ready_; ++i) {
    if (blocks_[i].listed) {
      listed += blocks_[i].diffed.changes.count;
    } else {
      copied.push_back(i);
    }
  }
  std::atomic<uint64_t> changed{listed};
  pool.ParallelFor(copied.size(), [&](size_t i, size_t) {
    const Block& block = blocks_[copied[i]];
    changed.fetch_add(CountDiffering(snapshot_->layout().slice(block.ref.slice).dtype,
                                     snapshot_->BlockBytes(block.ref.slice, block.ref.block),
                                     block.copied));
  });
  return changed.load();
}

void DeviceShards::UpdateCopy(std::span<const ListedBlock> blocks, Snapshot& snapshot,
                              ThreadPool& pool) {
  DWS_CHECK(windows_.empty());
  const auto update = [&]() -> Status {
    DWS_RETURN_IF_ERROR(TakeMemory(snapshot));
    DWS_ASSIGN_OR_RETURN(
        const bool lacks_changes,
        base_.BeginUpdate(snapshot, lanes_[0].work.stream(), copied_.host_bytes(), pool));
    if (!lacks_changes) return OkStatus();
    const std::array<cuda::WorkLane*, 2> lanes = {&lanes_[0].work, &lanes_[1].work};
    return WriteToCopy(snapshot, base_, blocks, lanes, pool);
  };
  const Status written = update();
  if (written.ok()) return;
  base_.Distrust();
  LogWarning("gpu_snapshot_distrusted", {{"gpu", device_->uuid()}, {"reason", Message(written)}});
}

std::optional<DiffedBlock> DeviceShards::Diffed(BlockRef ref) const {
  const Block& block = ReadyBlock(ref);
  return block.listed ? std::optional(block.diffed) : std::nullopt;
}

ByteSpan DeviceShards::View(BlockRef ref) const { return ReadyBlock(ref).copied; }

const DeviceShards::Block& DeviceShards::ReadyBlock(BlockRef ref) const {
  const uint32_t index = index_of_[NumberOf(*snapshot_, ref)];
  DWS_CHECK(index < ready_);
  const Block& block = blocks_[index];
  DWS_CHECK(block.ref.slice == ref.slice && block.ref.block == ref.block);
  return block;
}

}  // namespace dws
