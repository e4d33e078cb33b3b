// The bytes are proved while they are copied: the digest of every old slice is computed again, and
// those of the new slices are of the copy.
#include "sender_daemon/capture/refined_snapshot.h"

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/memory/available_memory.h"
#include "common/memory/segment_map.h"
#include "common/model/limits.h"
#include "common/model/refinement.h"

namespace dws {
namespace {

// The place of a finer slice's bytes: they lie in one coarse slice.
struct Origin {
  RankSlice slice;
  ConstSegmentMap bytes;
};

// The slice of `spec` that has the element at `point`.
uint32_t SliceAt(const TensorSpec& spec, const std::vector<DimRange>& point) {
  uint32_t number = 0;
  for (const Cuts& along : spec.cuts) {
    const auto after = std::ranges::upper_bound(along.at, point[along.dim].begin);
    number = number * along.cell_count() + static_cast<uint32_t>(after - along.at.begin());
  }
  return number;
}

Result<Origin> FindOrigin(Snapshot& old, const RankLayout& finer, RankSlice slice) {
  const TensorSpec& spec = finer.tensor(slice);
  const std::vector<DimRange> ranges = spec.Slice(finer.slice(slice).slice);
  const TensorSpec& coarse = old.layout().shards()[finer.slice(slice).shard].tensor;
  const uint32_t number = SliceAt(coarse, ranges);
  const auto from = old.layout().Find(coarse.name, number);
  DWS_CHECK(from.has_value());  // the rank owns the same elements
  const std::vector<DimRange> whole = coarse.Slice(number);
  const Result<BoxRuns> box = RunsWithin(whole, ranges, RowMajorStrides(ShapeOf(whole)));
  if (!box.ok()) return Annotate(box.status(), fmt::format("tensor '{}'", spec.name));
  const uint32_t element_bytes = ElementBytes(spec.dtype);
  const auto bytes = ConstSegmentMap::Create(
      old.SliceBytes(*from), box->first_element * element_bytes, box->runs, element_bytes);
  DWS_CHECK(bytes.ok());  // inside its slice
  return Origin{.slice = *from, .bytes = *bytes};
}

// Returns the first slice of `old` whose bytes do not have its digest; nullopt: all have.
std::optional<RankSlice> FindDamaged(Snapshot& old, ThreadPool& pool) {
  const RankLayout& layout = old.layout();
  std::atomic<uint32_t> damaged{layout.slice_count()};
  pool.ParallelFor(layout.slice_count(), [&](size_t index, size_t) {
    const RankSlice slice(static_cast<uint32_t>(index));
    if (old.DigestBlocks(slice, 0, layout.slice(slice).blocks) == old.digests()[index]) return;
    uint32_t first = damaged.load();
    while (slice.value() < first && !damaged.compare_exchange_weak(first, slice.value())) {
    }
  });
  if (damaged.load() == layout.slice_count()) return std::nullopt;
  return RankSlice(damaged.load());
}

Status Copy(Snapshot& old, Snapshot& copy, const std::vector<Origin>& origins, ThreadPool& pool) {
  if (const auto damaged = FindDamaged(old, pool); damaged.has_value()) {
    return DataLossError(
        "the snapshot of tensor '{}' (rank slice {}) is damaged: expected digest {}; the next "
        "version that brings it repairs it",
        old.layout().tensor(*damaged).name, damaged->value(),
        ToString(old.digests()[damaged->value()]));
  }
  const RankLayout& layout = copy.layout();
  std::vector<Digest> digests(layout.slice_count());
  pool.ParallelFor(layout.slice_count(), [&](size_t index, size_t) {
    const RankSlice slice(static_cast<uint32_t>(index));
    for (uint32_t block = 0; block < layout.slice(slice).blocks; ++block) {
      origins[index].bytes.Gather(uint64_t{block} * limits::kBlockElements,
                                  copy.BlockBytes(slice, block));
    }
    digests[index] = copy.DigestBlocks(slice, 0, layout.slice(slice).blocks);
  });
  copy.SetVersion(*old.version(), std::move(digests));
  return OkStatus();
}

}  // namespace

// The kernel would grant the memory and end some process when it is used.
Status CheckMemoryFor(const Snapshot& old) {
  const uint64_t available = AvailableMemoryBytes();
  if (old.memory().places().size_bytes() < available) return OkStatus();
  return ResourceExhaustedError(
      "cutting the layout finer takes {} MiB beside the snapshot while it lasts, {} MiB are "
      "available",
      old.memory().places().size_bytes() >> 20, available >> 20);
}

Result<std::unique_ptr<Snapshot>> RefinedSnapshot(Snapshot& old, RankLayout finer,
                                                  ThreadPool& pool) {
  DWS_CHECK(SameButCuts(old.layout(), finer));
  std::vector<Origin> origins(finer.slice_count());
  for (uint32_t s = 0; s < finer.slice_count(); ++s) {
    if (finer.slice(RankSlice(s)).elements == 0) continue;
    DWS_ASSIGN_OR_RETURN(origins[s], FindOrigin(old, finer, RankSlice(s)));
  }
  DWS_ASSIGN_OR_RETURN(auto copy, Snapshot::Create(std::move(finer), old.huge_pages()));
  if (!old.version().has_value()) return copy;  // nothing was captured yet
  DWS_RETURN_IF_ERROR(old.gate().BeginRead(limits::kSnapshotReadDeadline));
  const Status copied = Copy(old, *copy, origins, pool);
  old.gate().EndRead();
  DWS_RETURN_IF_ERROR(copied);
  return copy;
}

}  // namespace dws
