#include "tools/gpu_check/sections/compare_case.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/delta/blocks/diff.h"
#include "common/model/limits.h"
#include "tools/bench/measure/synthetic.h"

namespace dws::gpu_check {
namespace {

constexpr uint64_t kBlockBytes = uint64_t{limits::kBlockElements} * 2;
constexpr uint32_t kBlockSegments = cuda::DiffSegments(limits::kBlockElements, 2);
// A sender's limit: a block with more changes is copied whole.
constexpr uint32_t kDenseAbove = limits::kBlockElements / 8;
// The lists of a window in which every block has that many changes.
constexpr uint64_t ListBytes(uint64_t window_blocks) {
  return window_blocks * cuda::ListedBytes(kDenseAbove, 2);
}
// The log's pieces have heads, so it needs more: one piece for each 128 words at most.
constexpr uint64_t WorkBytes(uint64_t window_blocks) {
  return cuda::DiffWorkBytes(window_blocks, window_blocks * kBlockSegments) +
         ListBytes(window_blocks) + window_blocks * (kBlockBytes / 8 / 128) * 64;
}

template <typename T>
Result<cuda::CudaBuffer> Upload(const BenchDevice& device, const cuda::CudaStream& stream,
                                const std::vector<T>& items) {
  const ByteSpan bytes = std::as_bytes(std::span(items));
  DWS_ASSIGN_OR_RETURN(cuda::CudaBuffer buffer, device.device->Allocate(bytes.size()));
  DWS_RETURN_IF_ERROR(stream.CopyToDevice(buffer.address(), bytes));
  DWS_RETURN_IF_ERROR(stream.Synchronize());
  return buffer;
}

}  // namespace

ComparedUnit MakeComparedUnit(uint64_t elements, double density, ThreadPool& pool) {
  DWS_CHECK(elements > 0 && elements % limits::kBlockElements == 0);
  bench::Versions versions = bench::MakeBf16(elements, density);
  ComparedUnit unit{.before = std::move(versions.before), .after = std::move(versions.after)};
  const uint64_t blocks = elements / limits::kBlockElements;
  std::vector<BlockChanges> changes(blocks);
  std::vector<Digest> differences(blocks);
  pool.ParallelFor(blocks, [&](size_t b, size_t) {
    differences[b] =
        DiffBlock(DType::kBF16, ByteSpan(unit.before).subspan(b * kBlockBytes, kBlockBytes),
                  ByteSpan(unit.after).subspan(b * kBlockBytes, kBlockBytes), b * kBlockBytes / 8,
                  changes[b]);
  });
  for (uint64_t b = 0; b < blocks; ++b) {
    unit.changes += changes[b].size();
    unit.difference += differences[b];
  }
  return unit;
}

Result<std::unique_ptr<CompareCase>> CompareCase::Create(const BenchDevice& device,
                                                         uint64_t unit_elements, uint32_t copies,
                                                         uint64_t window_bytes_max) {
  std::unique_ptr<CompareCase> made(new CompareCase(device, unit_elements, copies));
  const cuda::CudaDevice& gpu = *device.device;
  const uint64_t window_blocks = window_bytes_max / kBlockBytes;
  DWS_ASSIGN_OR_RETURN(made->stream_, gpu.CreateStream());
  DWS_ASSIGN_OR_RETURN(made->live_, gpu.Allocate(made->size_bytes_));
  DWS_ASSIGN_OR_RETURN(made->snapshot_, gpu.Allocate(made->size_bytes_));
  DWS_ASSIGN_OR_RETURN(made->results_,
                       gpu.Allocate(made->size_bytes_ / kBlockBytes * sizeof(cuda::DiffResult)));
  DWS_ASSIGN_OR_RETURN(made->used_, gpu.Allocate(sizeof(uint64_t)));
  DWS_ASSIGN_OR_RETURN(made->arena_, gpu.Allocate(ListBytes(window_blocks)));
  DWS_ASSIGN_OR_RETURN(made->work_, gpu.Allocate(WorkBytes(window_blocks)));
  std::vector<cuda::Place> places;
  for (uint32_t copy = 0; copy < copies; ++copy) {
    places.push_back({.base = made->live_.address() + copy * made->unit_bytes_,
                      .run_elements = unit_elements,
                      .stride_elements = unit_elements});
  }
  DWS_ASSIGN_OR_RETURN(made->places_, Upload(device, made->stream_, places));
  return made;
}

uint64_t CompareCase::MemoryBytes(uint64_t size_bytes, uint64_t window_bytes_max) {
  const uint64_t blocks = size_bytes / kBlockBytes;
  const uint64_t window_blocks = window_bytes_max / kBlockBytes;
  return 2 * size_bytes + ListBytes(window_blocks) + WorkBytes(window_blocks) +
         blocks * (sizeof(cuda::DiffBlock) + sizeof(cuda::DiffResult) + kBlockSegments * 4);
}

// Doubles what is there with each copy: one transfer over PCIe for weights of any size.
Status CompareCase::Fill(const cuda::CudaBuffer& weights,
                         const std::vector<std::byte>& unit) const {
  DWS_CHECK(unit.size() == unit_bytes_);
  DWS_RETURN_IF_ERROR(stream_.CopyToDevice(weights.address(), unit));
  for (uint64_t copied = unit.size(); copied < size_bytes_;) {
    const uint64_t more = std::min(copied, size_bytes_ - copied);
    DWS_RETURN_IF_ERROR(stream_.CopyOnDevice(weights.address() + copied, weights.address(), more));
    copied += more;
  }
  return stream_.Synchronize();
}

Status CompareCase::Load(const ComparedUnit& unit) {
  unit_ = &unit;
  return Fill(live_, unit.after);
}

Status CompareCase::SetWindow(uint64_t window_bytes) {
  DWS_CHECK(window_bytes > 0 && window_bytes % kBlockBytes == 0);
  window_blocks_ = window_bytes / kBlockBytes;
  std::vector<cuda::DiffBlock> blocks;
  std::vector<uint32_t> segments;
  for (uint64_t at = 0; at < size_bytes_; at += kBlockBytes) {
    const auto in_window = static_cast<uint32_t>(blocks.size() % window_blocks_);
    const uint64_t in_unit = at % unit_bytes_;
    blocks.push_back({.snapshot = snapshot_.address() + at,
                      .first_element = in_unit / 2,
                      .first_word = in_unit / 8,
                      .elements = limits::kBlockElements,
                      .place = static_cast<uint32_t>(at / unit_bytes_),
                      .first_segment = in_window * kBlockSegments,
                      .element = {.bytes = 2, .is_float = 1}});
    segments.resize(segments.size() + kBlockSegments, in_window);
  }
  DWS_ASSIGN_OR_RETURN(blocks_, Upload(device_, stream_, blocks));
  DWS_ASSIGN_OR_RETURN(segments_, Upload(device_, stream_, segments));
  return OkStatus();
}

Status CompareCase::Reset() const { return Fill(snapshot_, unit_->before); }

Status CompareCase::Compare() const {
  const uint64_t block_count = size_bytes_ / kBlockBytes;
  for (uint64_t first = 0; first < block_count; first += window_blocks_) {
    const auto count = static_cast<uint32_t>(std::min(window_blocks_, block_count - first));
    const cuda::DiffArgs args{
        .blocks = blocks_.address() + first * sizeof(cuda::DiffBlock),
        .segments = segments_.address() + first * kBlockSegments * sizeof(uint32_t),
        .places = places_.address(),
        .results = results_.address() + first * sizeof(cuda::DiffResult),
        .arena = arena_.address(),
        .arena_bytes = arena_.size_bytes(),
        .arena_used = used_.address(),
        .work = work_.address(),
        .work_bytes = work_.size_bytes(),
        .block_count = count,
        .segment_count = count * kBlockSegments,
        .dense_above = kDenseAbove,
        .update = 1};
    DWS_RETURN_IF_ERROR(stream_.Zero(args.arena_used, sizeof(uint64_t)));
    DWS_RETURN_IF_ERROR(stream_.Zero(args.work, cuda::DiffZeroBytes(count)));
    DWS_RETURN_IF_ERROR(stream_.Launch(cuda::Kernel::kDiff, args, args.segment_count));
    DWS_RETURN_IF_ERROR(stream_.Launch(cuda::Kernel::kDiffList, args, args.segment_count));
  }
  return stream_.Synchronize();
}

Status CompareCase::CheckFindings(bool changed) const {
  std::vector<cuda::DiffResult> results(size_bytes_ / kBlockBytes);
  DWS_RETURN_IF_ERROR(
      stream_.CopyToHost(std::as_writable_bytes(std::span(results)), results_.address()));
  DWS_RETURN_IF_ERROR(stream_.Synchronize());
  uint64_t changes = 0;
  Digest difference;
  for (const cuda::DiffResult& result : results) {
    if (result.listed == 0) return DataLossError("the changes of a block are not listed");
    changes += result.changes;
    difference += Digest{.lane0 = result.difference.lane0, .lane1 = result.difference.lane1};
  }
  uint64_t expected_changes = 0;
  Digest expected;
  for (uint64_t at = 0; changed && at < size_bytes_; at += unit_bytes_) {
    expected_changes += unit_->changes;
    expected += unit_->difference;
  }
  if (changes == expected_changes && difference == expected) return OkStatus();
  return DataLossError("{} changes are found instead of {}, or others", changes, expected_changes);
}

}  // namespace dws::gpu_check
