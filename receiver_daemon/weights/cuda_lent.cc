// The owner may change lent bytes while they are copied. So digests are taken of what has arrived,
// in memory that only this process writes.
#include "receiver_daemon/weights/cuda_lent.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/model/limits.h"
#include "common/transport/same_host/gpu_copy_places.h"

namespace dws {
namespace {

// Bytes of one copy beside a running engine: about half a millisecond on an A100.
constexpr uint64_t kCopyBytesMax = uint64_t{256} << 20;
// Blocks of one launch; their list fits a lane.
constexpr size_t kBlocksMax = 65'536;
static_assert(kBlocksMax * sizeof(cuda::CommitBlock) <= cuda::WorkLane::kBytesMax);

bool IsExpected(const cuda::KernelDigest& found, const Digest& expected) {
  return Digest{.lane0 = found.lane0, .lane1 = found.lane1} == expected;
}

// CheckTime of all memory that the slices lie in.
Status CheckTime(std::span<const LentSlice> slices) {
  const cuda::LentMemory* checked = nullptr;  // neighbours mostly lie in one memory
  for (const LentSlice& slice : slices) {
    if (slice.memory == checked) continue;
    checked = slice.memory;
    DWS_RETURN_IF_ERROR(checked->CheckTime());
  }
  return OkStatus();
}

// Adds the blocks that write a slice, which lies at `address`, to one place.
void AddCommitBlocks(const RankLayout::SliceEntry& slice, uint64_t address, size_t place,
                     std::vector<cuda::CommitBlock>& blocks) {
  for (uint32_t block = 0; block < slice.blocks; ++block) {
    const uint64_t first = uint64_t{block} * limits::kBlockElements;
    blocks.push_back({.staged = address + first * ElementBytes(slice.dtype),
                      .first_element = first,
                      .entries = BlockElements(slice.elements, block),
                      .place = static_cast<uint32_t>(place),
                      .element_bytes = static_cast<uint8_t>(ElementBytes(slice.dtype)),
                      .dense = 1});
  }
}

// Copies whole blocks, which a kernel reads where they are lent, to their places.
Status Write(const LentSlices& lent, std::span<const cuda::CommitBlock> blocks) {
  cuda::DeviceWeights& weights = lent.weights;
  while (!blocks.empty()) {
    DWS_RETURN_IF_ERROR(CheckTime(lent.slices));
    const auto piece = blocks.first(std::min(blocks.size(), kBlocksMax));
    const ByteSpan list = std::as_bytes(piece);
    DWS_ASSIGN_OR_RETURN(cuda::WorkLane* const lane, weights.NextLane());
    const cuda::WorkLane::Room room = lane->Put(list.size());
    std::memcpy(room.host.data(), list.data(), list.size());
    DWS_RETURN_IF_ERROR(lane->Send());
    DWS_RETURN_IF_ERROR(
        lane->stream().Launch(cuda::Kernel::kCommit,
                              cuda::CommitArgs{.blocks = room.address,
                                               .places = weights.places(),
                                               .arena = 0,
                                               .block_count = static_cast<uint32_t>(piece.size())},
                              piece.size()));
    DWS_KILLPOINT("receiver.full.inside_snapshot");
    blocks = blocks.subspan(piece.size());
  }
  return OkStatus();
}

Result<uint64_t> AddressOf(const LentSlice& slice, const cuda::DeviceWeights& weights) {
  DWS_ASSIGN_OR_RETURN(const uint64_t address, slice.memory->AddressOn(weights.device_ptr()));
  return address + slice.offset_bytes;
}

// Copies the slices to `arena`, to `offsets`. Neighbours in lent memory are copied together.
Status CopyToArena(const LentSlices& lent, uint64_t arena, const GpuCopyPlaces& at) {
  uint64_t from = 0;  // of bytes that are not copied yet
  uint64_t to = 0;
  uint64_t size = 0;
  const cuda::LentMemory* memory = nullptr;  // of these bytes
  const auto copy = [&]() -> Status {
    while (size > 0) {
      DWS_RETURN_IF_ERROR(memory->CheckTime());
      const uint64_t piece = std::min(size, kCopyBytesMax);
      DWS_ASSIGN_OR_RETURN(cuda::WorkLane* const lane, lent.weights.NextLane());
      DWS_RETURN_IF_ERROR(lane->stream().CopyOnDevice(to, from, piece));
      DWS_RETURN_IF_ERROR(lent.weights.Rest(*lane));
      DWS_KILLPOINT("receiver.full.inside_snapshot");
      from += piece;
      to += piece;
      size -= piece;
    }
    return OkStatus();
  };
  for (size_t i = 0; i < lent.slices.size(); ++i) {
    DWS_ASSIGN_OR_RETURN(const uint64_t address, AddressOf(lent.slices[i], lent.weights));
    const uint64_t target = arena + at.offsets[i];
    // The gap between neighbours is copied too.
    if (lent.slices[i].memory == memory && address - from == target - to &&
        address >= from + size && address - (from + size) < kGpuCopyAlignment) {
      size = address - from;
    } else {
      DWS_RETURN_IF_ERROR(copy());
      from = address;
      to = target;
      memory = lent.slices[i].memory;
    }
    size += lent.layout.slice(lent.slices[i].slice).size_bytes();
  }
  return copy();
}

// Returns the digests of slices that lie in `arena`, by slice.
Result<std::vector<cuda::KernelDigest>> DigestsIn(const LentSlices& copied, uint64_t arena,
                                                  const GpuCopyPlaces& at) {
  std::vector<cuda::Place> places;
  std::vector<cuda::DigestBlock> blocks;
  for (uint32_t i = 0; i < copied.slices.size(); ++i) {
    const RankLayout::SliceEntry& slice = copied.layout.slice(copied.slices[i].slice);
    cuda::AddDigestBlocks(slice, i, i, blocks);
    const uint64_t elements = std::max<uint64_t>(slice.elements, 1);
    places.push_back(
        {.base = arena + at.offsets[i], .run_elements = elements, .stride_elements = elements});
  }
  const ByteSpan table = std::as_bytes(std::span(places));
  DWS_ASSIGN_OR_RETURN(const cuda::CudaBuffer on_device,
                       copied.weights.device().Allocate(table.size()));
  DWS_ASSIGN_OR_RETURN(cuda::WorkLane* const lane, copied.weights.NextLane());
  DWS_RETURN_IF_ERROR(lane->stream().CopyToDevice(on_device.address(), table));
  DWS_RETURN_IF_ERROR(lane->stream().Synchronize());
  return copied.weights.DigestsAt(on_device.address(), blocks, copied.slices.size(),
                                  Pace::kBackground);
}

}  // namespace

Result<std::vector<uint8_t>> WriteLent(const LentSlices& lent) {
  std::vector<cuda::CommitBlock> writes;
  std::vector<cuda::DigestBlock> reads;
  std::vector<size_t> slice_of;  // by result
  for (size_t i = 0; i < lent.slices.size(); ++i) {
    const LentSlice& slice = lent.slices[i];
    const RankLayout::SliceEntry& entry = lent.layout.slice(slice.slice);
    const size_t first = lent.places.First(lent.rank, slice.slice);
    const size_t end = first + lent.places.Count(lent.rank, slice.slice);
    if (first == end) continue;
    DWS_ASSIGN_OR_RETURN(const uint64_t address, AddressOf(slice, lent.weights));
    for (size_t place = first; place < end; ++place) {
      AddCommitBlocks(entry, address, place, writes);
      cuda::AddDigestBlocks(entry, static_cast<uint32_t>(place),
                            static_cast<uint32_t>(slice_of.size()), reads);
      slice_of.push_back(i);
    }
  }
  Status written = Write(lent, writes);
  written.Update(lent.weights.Synchronize());  // also after an error: the loan may end
  written.Update(CheckTime(lent.slices));
  DWS_RETURN_IF_ERROR(written);
  DWS_ASSIGN_OR_RETURN(const std::vector<cuda::KernelDigest> digests,
                       lent.weights.Digests(reads, slice_of.size(), Pace::kPaused));
  std::vector<uint8_t> arrived(lent.slices.size(), 1);
  for (size_t r = 0; r < slice_of.size(); ++r) {
    if (!IsExpected(digests[r], lent.slices[slice_of[r]].expected)) arrived[slice_of[r]] = 0;
  }
  return arrived;
}

Result<StagedLent> StageLent(const LentSlices& lent, StagingBudget& budget) {
  std::vector<LentSlice> here;
  std::vector<RankSlice> numbers;
  std::vector<size_t> index;  // in lent.slices
  for (size_t i = 0; i < lent.slices.size(); ++i) {
    if (lent.places.Count(lent.rank, lent.slices[i].slice) == 0) continue;
    here.push_back(lent.slices[i]);
    numbers.push_back(lent.slices[i].slice);
    index.push_back(i);
  }
  StagedLent staged{.blocks = {}, .arrived = std::vector<uint8_t>(lent.slices.size(), 1)};
  if (here.empty()) return staged;
  const GpuCopyPlaces at(lent.layout, numbers);
  DWS_ASSIGN_OR_RETURN(const uint64_t free, lent.weights.device().FreeBytes());
  if (free < at.size_bytes || free - at.size_bytes < cuda::kStagingSpareBytes) {
    return ResourceExhaustedError("{} bytes are free on {}, expected {} and {} more for the engine",
                                  free, lent.weights.device().uuid(), at.size_bytes,
                                  cuda::kStagingSpareBytes);
  }
  if (!budget.Take(at.size_bytes)) {
    return ResourceExhaustedError("--staging-bytes has no room for {} bytes on {}", at.size_bytes,
                                  lent.weights.device().uuid());
  }
  DWS_ASSIGN_OR_RETURN(cuda::CudaBuffer arena, lent.weights.device().Allocate(at.size_bytes));
  LentSlices copied = lent;
  copied.slices = here;
  Status done = CopyToArena(copied, arena.address(), at);
  done.Update(lent.weights.Synchronize());  // also after an error: arena and loan may end
  done.Update(CheckTime(here));
  DWS_RETURN_IF_ERROR(done);
  DWS_ASSIGN_OR_RETURN(const std::vector<cuda::KernelDigest> digests,
                       DigestsIn(copied, arena.address(), at));
  std::vector<cuda::CommitBlock> writes;
  for (size_t i = 0; i < here.size(); ++i) {
    staged.arrived[index[i]] = IsExpected(digests[i], here[i].expected) ? 1 : 0;
    if (staged.arrived[index[i]] == 0) continue;
    const size_t first = lent.places.First(lent.rank, here[i].slice);
    for (size_t p = first; p < first + lent.places.Count(lent.rank, here[i].slice); ++p) {
      AddCommitBlocks(lent.layout.slice(here[i].slice), arena.address() + at.offsets[i], p, writes);
    }
  }
  staged.blocks = cuda::StagedBlocks::Dense(std::move(arena), std::move(writes));
  const uint8_t kept = 1;
  DWS_RETURN_IF_ERROR(staged.blocks.Seal(lent.weights, std::span(&kept, 1)));
  return staged;
}

}  // namespace dws
