#include "sender_daemon/capture/device_shards.h"

#include <algorithm>
#include <atomic>
#include <cstring>

#include "common/base/check.h"
#include "common/base/log/log.h"

namespace dws {
namespace {

constexpr uint32_t kNone = ~uint32_t{0};
// The most blocks in a window: their descriptions fit a lane.
constexpr size_t kWindowBlocksMax = 16'384;
static_assert(kWindowBlocksMax * sizeof(cuda::DiffBlock) <= cuda::WorkLane::kBytesMax);
static_assert(kWindowBlocksMax * sizeof(cuda::GatherBlock) <= cuda::WorkLane::kBytesMax);
// Of a copied block in copied_: a gather writes at least as many bytes.
constexpr uint64_t kAlignment = 64;
// Offset of DiffResult[], after the number of arena bytes used.
constexpr uint64_t kResultsAt = 16;
constexpr uint64_t kResultsBytes = kResultsAt + kWindowBlocksMax * sizeof(cuda::DiffResult);
// Blocks that a thread checks at once.
constexpr size_t kBatchBlocks = 16;

constexpr uint64_t Padded(uint64_t bytes) { return CeilDiv(bytes, kAlignment) * kAlignment; }

std::vector<RankSlice> SlicesOf(const std::vector<DeviceShards::SlicePlace>& places) {
  std::vector<RankSlice> slices;
  for (const auto& [slice, place] : places) slices.push_back(slice);
  return slices;
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
      base_(device_, SlicesOf(places), options.spare_bytes) {
  for (const auto& [slice, place] : places) {
    DWS_CHECK(slice.value() >= place_of_.size());  // slices ascend
    place_of_.resize(slice.value() + 1, kNone);
    place_of_.back() = static_cast<uint32_t>(places_.size());
    places_.push_back(place);
  }
}

Status DeviceShards::Start() {
  if (started_) return OkStatus();
  DWS_ASSIGN_OR_RETURN(lane_, cuda::WorkLane::Create(*device_));
  DWS_ASSIGN_OR_RETURN(device_places_, device_->Allocate(places_.size() * sizeof(cuda::Place)));
  DWS_ASSIGN_OR_RETURN(device_results_, device_->Allocate(kResultsBytes));
  DWS_ASSIGN_OR_RETURN(device_arena_, device_->Allocate(options_.arena_bytes));
  DWS_ASSIGN_OR_RETURN(results_, device_->AllocatePinned(kResultsBytes));
  DWS_ASSIGN_OR_RETURN(arena_, device_->AllocatePinned(options_.arena_bytes));
  DWS_ASSIGN_OR_RETURN(copied_, device_->AllocatePinned(options_.window_bytes));
  DWS_RETURN_IF_ERROR(
      lane_.stream().CopyToDevice(device_places_.address(), std::as_bytes(std::span(places_))));
  DWS_RETURN_IF_ERROR(lane_.stream().Synchronize());
  started_ = true;
  return OkStatus();
}

uint64_t DeviceShards::Number(BlockRef ref) const {
  return snapshot_->layout().slice(ref.slice).first_block + ref.block;
}

void DeviceShards::Begin(Snapshot& snapshot, FetchAs as) {
  DWS_CHECK(snapshot_ == nullptr || snapshot_ == &snapshot);
  snapshot_ = &snapshot;
  as_ = as;
  window_.clear();
  window_bytes_ = 0;
  window_of_.resize(snapshot.layout().block_count());
}

bool DeviceShards::Take(BlockRef ref) {
  const uint64_t size = snapshot_->BlockBytes(ref.slice, ref.block).size();
  DWS_CHECK(Padded(size) <= options_.window_bytes);
  DWS_CHECK(ref.slice.value() < place_of_.size() && place_of_[ref.slice.value()] != kNone);
  if (window_.size() == kWindowBlocksMax || window_bytes_ + Padded(size) > options_.window_bytes) {
    return false;
  }
  window_of_[Number(ref)] = static_cast<uint32_t>(window_.size());
  window_.push_back({.ref = ref, .size_bytes = size, .copied_at = window_bytes_, .diffed = {}});
  window_bytes_ += Padded(size);
  return true;
}

Result<FetchedBlocks> DeviceShards::Fetch(ThreadPool& pool) {
  if (window_.empty()) return FetchedBlocks{};
  DWS_CHECK(window_.size() <= kWindowBlocksMax && window_bytes_ <= options_.window_bytes);
  Result<FetchedBlocks> fetched = FetchWindow(pool);
  if (fetched.ok()) return fetched;
  base_.Distrust();
  // Wait for the GPU, so that nothing reads the weights once the trainer has the error.
  if (started_) (void)lane_.stream().Synchronize();
  return Annotate(fetched.status(), fmt::format("the weights on {} ({}) cannot be captured",
                                                device_->uuid(), device_->name()));
}

Result<FetchedBlocks> DeviceShards::FetchWindow(ThreadPool& pool) {
  DWS_RETURN_IF_ERROR(Start());
  DWS_RETURN_IF_ERROR(base_.Prepare(*snapshot_, lane_.stream(), copied_.host_bytes(), pool));
  const std::vector<uint32_t> comparable = Comparable();
  DWS_RETURN_IF_ERROR(Compare(comparable));
  CheckFindings(comparable, pool);
  std::vector<uint32_t> whole;
  for (uint32_t i = 0; i < window_.size(); ++i) {
    if (!window_[i].listed) whole.push_back(i);
  }
  DWS_RETURN_IF_ERROR(CopyWhole(whole));
  return FetchedBlocks{.compared = window_.size() - whole.size(), .copied = whole.size()};
}

// All blocks, if changes are wanted, except those of distrusted slices: the digest of such a slice is
// recomputed from the host's bytes, so all of these must come from the trainer.
std::vector<uint32_t> DeviceShards::Comparable() const {
  std::vector<uint32_t> blocks;
  if (as_ == FetchAs::kWhole) return blocks;
  for (uint32_t i = 0; i < window_.size(); ++i) {
    if (!snapshot_->distrusts(window_[i].ref.slice)) blocks.push_back(i);
  }
  return blocks;
}

// Puts the input of dws_diff into the lane. Compare sends it.
cuda::DiffArgs DeviceShards::DescribeComparison(std::span<const uint32_t> blocks, uint64_t rooms) {
  const cuda::WorkLane::Room room = lane_.Put(blocks.size() * sizeof(cuda::DiffBlock));
  uint32_t widest = 1;
  for (size_t i = 0; i < blocks.size(); ++i) {
    const BlockRef ref = window_[blocks[i]].ref;
    const RankLayout::SliceEntry& slice = snapshot_->layout().slice(ref.slice);
    widest = std::max(widest, ElementBytes(slice.dtype));
    const cuda::DiffBlock block{
        .snapshot = base_.Address(*snapshot_, ref),
        .first_element = uint64_t{ref.block} * limits::kBlockElements,
        .first_word = slice.BlockFirstWord(ref.block),
        .elements = BlockElements(slice.elements, ref.block),
        .place = place_of_[ref.slice.value()],
        .element = {
            .bytes = static_cast<uint8_t>(ElementBytes(slice.dtype)),
            .is_float = MappingOf(slice.dtype) == Mapping::kFloat ? uint8_t{1} : uint8_t{0}}};
    std::memcpy(room.host.data() + i * sizeof(block), &block, sizeof(block));
  }
  const uint64_t room_bytes = cuda::ListedBytes(options_.dense_above, widest);
  const uint64_t room_count =
      std::min<uint64_t>(cuda::WorkLane::kScratchBytes / room_bytes, blocks.size());
  return {.blocks = room.address,
          .places = device_places_.address(),
          .results = device_results_.address() + kResultsAt,
          .arena = device_arena_.address(),
          .arena_bytes = options_.arena_bytes,
          .arena_used = device_results_.address(),
          .rooms = rooms,
          .room_bytes = room_bytes,
          .room_count = static_cast<uint32_t>(room_count),
          .block_count = static_cast<uint32_t>(blocks.size()),
          .dense_above = options_.dense_above,
          .update = base_.is_copy() ? 1U : 0U};
}

Status DeviceShards::Compare(std::span<const uint32_t> blocks) {
  if (blocks.empty()) return OkStatus();
  DWS_RETURN_IF_ERROR(lane_.Begin());
  const cuda::DiffArgs args = DescribeComparison(blocks, lane_.scratch());
  const cuda::CudaStream& stream = lane_.stream();
  DWS_RETURN_IF_ERROR(lane_.Send());
  DWS_RETURN_IF_ERROR(stream.Zero(device_results_.address(), kResultsAt));
  DWS_RETURN_IF_ERROR(stream.Launch(cuda::Kernel::kDiff, args, args.room_count));
  DWS_RETURN_IF_ERROR(stream.CopyToHost(
      results_.host_bytes().first(kResultsAt + blocks.size() * sizeof(cuda::DiffResult)),
      device_results_.address()));
  DWS_RETURN_IF_ERROR(stream.Synchronize());
  // The counter includes requests that did not fit, so it can exceed the arena.
  const uint64_t used =
      std::min(LoadLe<uint64_t>(results_.host_bytes().data()), options_.arena_bytes);
  DWS_RETURN_IF_ERROR(stream.CopyToHost(arena_.host_bytes().first(used), device_arena_.address()));
  return stream.Synchronize();
}

void DeviceShards::CheckFindings(std::span<const uint32_t> blocks, ThreadPool& pool) {
  std::vector<ListedWords> words(pool.worker_count());
  std::atomic<uint32_t> differing{0};
  std::atomic<uint32_t> one{kNone};
  pool.ParallelFor(CeilDiv(blocks.size(), kBatchBlocks), [&](size_t batch, size_t worker) {
    const size_t end = std::min(blocks.size(), (batch + 1) * kBatchBlocks);
    for (size_t i = batch * kBatchBlocks; i < end; ++i) {
      if (CheckFinding(static_cast<uint32_t>(i), window_[blocks[i]], words[worker])) continue;
      differing.fetch_add(1);
      one.store(blocks[i]);
    }
  });
  if (differing.load() == 0) return;
  const BlockRef ref = window_[one.load()].ref;
  LogWarning("gpu_snapshot_differs",
             {{"gpu", device_->uuid()},
              {"blocks", differing.load()},
              {"tensor", snapshot_->layout().tensor(ref.slice).name},
              {"rank_slice", ref.slice.value()},
              {"block", ref.block},
              {"reason",
               "the changes on the GPU since the last version do not fit the snapshot: memory of "
               "one of the two is damaged; these blocks are copied whole"}});
}

// False if the changes of result `number` are not changes of the host's `block`.
bool DeviceShards::CheckFinding(uint32_t number, Block& block, ListedWords& words) const {
  const cuda::DiffResult result = ResultOf(results_.host_bytes(), number);
  if (result.listed == 0) return true;  // many changes: it is copied whole
  const RankLayout::SliceEntry& slice = snapshot_->layout().slice(block.ref.slice);
  const uint64_t element_bytes = ElementBytes(slice.dtype);
  const uint64_t positions = cuda::StagedPositionsBytes(result.changes);
  const uint64_t values = CeilDiv(result.changes * element_bytes, 8) * 8;
  if (result.changes > limits::kBlockElements || result.at > options_.arena_bytes ||
      positions + 2 * values > options_.arena_bytes - result.at) {
    return false;
  }
  const ByteSpan listed = ByteSpan(arena_.host_bytes()).subspan(result.at, positions + 2 * values);
  const ListedChanges changes{
      .count = result.changes,
      .positions = listed.first(result.changes * sizeof(uint16_t)),
      .before = listed.subspan(positions, result.changes * element_bytes),
      .after = listed.subspan(positions + values, result.changes * element_bytes)};
  const std::optional<Digest> difference =
      DifferenceOf(slice.dtype, changes, snapshot_->BlockBytes(block.ref.slice, block.ref.block),
                   slice.BlockFirstWord(block.ref.block), words);
  const Digest seen{.lane0 = result.difference.lane0, .lane1 = result.difference.lane1};
  if (difference != seen) return false;
  block.listed = true;
  block.diffed = {.difference = seen, .changes = changes};
  return true;
}

// Writes to the GPU's copy of the snapshot first, so that both get exactly the same bytes.
Status DeviceShards::CopyWhole(std::span<const uint32_t> blocks) {
  if (blocks.empty()) return OkStatus();
  DWS_RETURN_IF_ERROR(lane_.Begin());
  const cuda::WorkLane::Room room = lane_.Put(blocks.size() * sizeof(cuda::GatherBlock));
  for (size_t i = 0; i < blocks.size(); ++i) {
    const Block& from = window_[blocks[i]];
    const RankLayout::SliceEntry& slice = snapshot_->layout().slice(from.ref.slice);
    const cuda::GatherBlock block{
        .target = base_.is_copy() ? base_.Address(*snapshot_, from.ref)
                                  : copied_.address() + from.copied_at,
        .first_element = uint64_t{from.ref.block} * limits::kBlockElements,
        .elements = BlockElements(slice.elements, from.ref.block),
        .place = place_of_[from.ref.slice.value()],
        .element_bytes = static_cast<uint8_t>(ElementBytes(slice.dtype))};
    std::memcpy(room.host.data() + i * sizeof(block), &block, sizeof(block));
  }
  DWS_RETURN_IF_ERROR(lane_.Send());
  DWS_RETURN_IF_ERROR(
      lane_.stream().Launch(cuda::Kernel::kGather,
                            cuda::GatherArgs{.blocks = room.address,
                                             .places = device_places_.address(),
                                             .block_count = static_cast<uint32_t>(blocks.size())},
                            blocks.size()));
  if (base_.is_copy()) DWS_RETURN_IF_ERROR(BringGathered(blocks));
  return lane_.stream().Synchronize();
}

Status DeviceShards::BringGathered(std::span<const uint32_t> blocks) const {
  for (size_t i = 0; i < blocks.size();) {
    const Block& first = window_[blocks[i]];
    const uint64_t address = base_.Address(*snapshot_, first.ref);
    uint64_t size = Padded(first.size_bytes);
    // Blocks that are adjacent on both sides are copied together.
    for (++i; i < blocks.size(); ++i) {
      const Block& next = window_[blocks[i]];
      if (next.copied_at != first.copied_at + size ||
          base_.Address(*snapshot_, next.ref) != address + size) {
        break;
      }
      size += Padded(next.size_bytes);
    }
    DWS_RETURN_IF_ERROR(
        lane_.stream().CopyToHost(copied_.host_bytes().subspan(first.copied_at, size), address));
  }
  return OkStatus();
}

std::optional<DiffedBlock> DeviceShards::Diffed(BlockRef ref) const {
  const uint32_t index = window_of_[Number(ref)];
  DWS_CHECK(index < window_.size());
  const Block& block = window_[index];
  DWS_CHECK(block.ref.slice == ref.slice && block.ref.block == ref.block);
  return block.listed ? std::optional(block.diffed) : std::nullopt;
}

ByteSpan DeviceShards::View(BlockRef ref) const {
  const uint32_t index = window_of_[Number(ref)];
  DWS_CHECK(index < window_.size());
  const Block& block = window_[index];
  DWS_CHECK(block.ref.slice == ref.slice && block.ref.block == ref.block);
  return ByteSpan(copied_.host_bytes()).subspan(block.copied_at, block.size_bytes);
}

}  // namespace dws
