// A turn of a lane takes as many blocks as fit; the host fills one lane while the GPU works on the
// other.
#include "sender_daemon/capture/copy_update.h"

#include <cstring>

#include "common/base/check.h"
#include "common/memory/cuda/kernels/kernel_args.h"

namespace dws {
namespace {

using cuda::WorkLane;

uint64_t StagedBytes(const ListedChanges& changes) {
  return WorkLane::Padded(cuda::StagedPositionsBytes(changes.count) + changes.after.size());
}

// Begins to write the first of `blocks`, and returns how many.
Result<size_t> BeginTurn(const Snapshot& snapshot, const DeviceSnapshot& copy,
                         std::span<const ListedBlock> blocks, WorkLane& lane, ThreadPool& pool) {
  DWS_RETURN_IF_ERROR(lane.Begin());
  constexpr uint64_t kRoom = WorkLane::kBytesMax - 4 * WorkLane::kAlignment;
  std::vector<uint64_t> at;  // of the staged bytes, by block
  uint64_t bytes = 0;
  for (const ListedBlock& block : blocks) {
    const uint64_t staged = StagedBytes(block.changes);
    const uint64_t described = (at.size() + 1) * (sizeof(cuda::CommitBlock) + sizeof(cuda::Place));
    if (bytes + staged + described > kRoom) break;
    at.push_back(bytes);
    bytes += staged;
  }
  DWS_CHECK(!at.empty());  // a lane has room for any block
  const WorkLane::Room commits = lane.Put(at.size() * sizeof(cuda::CommitBlock));
  const WorkLane::Room places = lane.Put(at.size() * sizeof(cuda::Place));
  const WorkLane::Room staged = lane.Put(bytes);
  pool.ParallelFor(at.size(), [&](size_t i, size_t) {
    const auto& [ref, changes] = blocks[i];
    const uint64_t elements = BlockElements(snapshot.layout().slice(ref.slice).elements, ref.block);
    const cuda::Place place{
        .base = copy.Address(snapshot, ref), .run_elements = elements, .stride_elements = elements};
    const auto element_bytes =
        static_cast<uint8_t>(ElementBytes(snapshot.layout().slice(ref.slice).dtype));
    const cuda::CommitBlock commit{.staged = staged.address + at[i],
                                   .first_element = 0,
                                   .entries = changes.count,
                                   .place = static_cast<uint32_t>(i),
                                   .element_bytes = element_bytes,
                                   .dense = 0};
    std::memcpy(commits.host.data() + i * sizeof(commit), &commit, sizeof(commit));
    std::memcpy(places.host.data() + i * sizeof(place), &place, sizeof(place));
    std::byte* const to = staged.host.data() + at[i];
    std::memcpy(to, changes.positions.data(), changes.positions.size());
    std::memcpy(to + cuda::StagedPositionsBytes(changes.count), changes.after.data(),
                changes.after.size());
  });
  DWS_RETURN_IF_ERROR(lane.Send());
  DWS_RETURN_IF_ERROR(
      lane.stream().Launch(cuda::Kernel::kCommit,
                           cuda::CommitArgs{.blocks = commits.address,
                                            .places = places.address,
                                            .arena = 0,
                                            .block_count = static_cast<uint32_t>(at.size())},
                           at.size()));
  return at.size();
}

}  // namespace

Status WriteToCopy(const Snapshot& snapshot, const DeviceSnapshot& copy,
                   std::span<const ListedBlock> blocks, std::span<WorkLane* const> lanes,
                   ThreadPool& pool) {
  DWS_CHECK(copy.is_copy() && !lanes.empty());
  Status status;
  for (size_t turn = 0; status.ok() && !blocks.empty(); ++turn) {
    const Result<size_t> begun =
        BeginTurn(snapshot, copy, blocks, *lanes[turn % lanes.size()], pool);
    status = begun.status();
    if (begun.ok()) blocks = blocks.subspan(*begun);
  }
  for (const WorkLane* lane : lanes) status.Update(lane->stream().Synchronize());
  return status;
}

}  // namespace dws
