// Bytes are those that a kernel must move, by the table in docs/gpu.md; how far it is from that is
// the model's share (gpu_model.h).
#include "tests/fakes/cuda/model/kernel_work.h"

#include <algorithm>
#include <cstring>

#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/memory/cuda/kernels/quantise/quantise_args.h"

namespace dws::cuda {
namespace {

constexpr uint64_t kSectorBytes = 32;
constexpr uint8_t kClassSplit = 3;
constexpr uint8_t kDenseUlp = 4;

// Bytes on the device, by what moves them, and over the bus.
struct Moved {
  uint64_t read = 0;    // only read
  uint64_t copied = 0;  // read or written in a copy
  uint64_t to_device = 0;
  uint64_t to_host = 0;
  uint64_t changes = 0;
};

template <typename T>
T At(uint64_t address, uint64_t index) {
  T item;
  std::memcpy(&item, reinterpret_cast<const void*>(address + index * sizeof(T)),
              sizeof(T));  // NOLINT
  return item;
}

template <typename Args>
Args As(const void* arguments) {
  Args args;
  std::memcpy(&args, arguments, sizeof(args));
  return args;
}

// Each of the two launches that may follow one another takes the blocks of its modes.
Moved MovedByStage(const StageArgs& args, bool split) {
  Moved moved;
  for (uint32_t i = 0; i < args.block_count; ++i) {
    const auto block = At<StageBlock>(args.blocks, i);
    if ((block.mode == kClassSplit) != split) continue;
    const uint64_t whole = uint64_t{block.elements} * block.element.bytes;
    const bool dense = block.mode >= kDenseUlp;
    const uint64_t sectors = std::min(whole, uint64_t{block.nnz} * kSectorBytes);
    moved.read += block.payload_bytes + (dense || split ? whole : sectors) +
                  StagedBytes(block.mode, block.nnz, block.elements, block.element.bytes);
    if (!dense) moved.changes += block.nnz;
  }
  return moved;
}

Moved MovedByCommit(const CommitArgs& args) {
  Moved moved;
  for (uint32_t i = 0; i < args.block_count; ++i) {
    const auto block = At<CommitBlock>(args.blocks, i);
    const uint64_t values = uint64_t{block.entries} * block.element_bytes;
    moved.copied += block.dense != 0 ? 2 * values
                                     : StagedPositionsBytes(block.entries) + values +
                                           2 * kSectorBytes * block.entries;
  }
  return moved;
}

Moved MovedByDigest(const DigestArgs& args) {
  Moved moved;
  for (uint32_t i = 0; i < args.block_count; ++i) {
    const auto block = At<DigestBlock>(args.blocks, i);
    moved.read += uint64_t{block.elements} * block.element_bytes;
  }
  return moved;
}

Moved MovedByDiff(const DiffArgs& args, const std::function<bool(uint64_t)>& in_host) {
  Moved moved;
  for (uint32_t i = 0; i < args.block_count; ++i) {
    const auto block = At<DiffBlock>(args.blocks, i);
    const uint64_t bytes = uint64_t{block.elements} * block.element.bytes;
    const bool away = in_host(block.snapshot);
    moved.read += away ? bytes : 2 * bytes;
    if (away) moved.to_device += bytes;
  }
  return moved;
}

Moved MovedByDiffList(const DiffArgs& args) {
  Moved moved;
  for (uint32_t i = 0; i < args.block_count; ++i) {
    const auto block = At<DiffBlock>(args.blocks, i);
    const auto result = At<DiffResult>(args.results, i);
    if (result.listed == 0) continue;
    const uint64_t sectors = args.update != 0 ? 2 * kSectorBytes * result.changes : 0;
    moved.copied += 2 * ListedBytes(result.changes, block.element.bytes) + sectors;
  }
  return moved;
}

Moved MovedByGather(const GatherArgs& args, const std::function<bool(uint64_t)>& in_host) {
  Moved moved;
  for (uint32_t i = 0; i < args.block_count; ++i) {
    const auto block = At<GatherBlock>(args.blocks, i);
    const uint64_t bytes = uint64_t{block.elements} * block.element_bytes;
    const bool away = in_host(block.target);
    moved.copied += away ? bytes : 2 * bytes;
    if (away) moved.to_host += bytes;
  }
  return moved;
}

// What is read twice comes from a cache the second time.
Moved MovedByQuantise(const QuantiseArgs& args) {
  const bool whole_bytes = quantise::CodesOf(args.rule) == quantise::Codes::kE4m3;
  const uint64_t elements = args.count * args.tile_rows * args.tile_columns;
  const uint64_t beside = quantise::ScaleBytes(args.rule) + (args.amax != 0 ? 2 : 0);
  return {.read = elements * 2,
          .copied = (whole_bytes ? elements : elements / 2) + args.count * beside};
}

Moved MovedBy(Kernel kernel, const void* arguments, const std::function<bool(uint64_t)>& in_host) {
  switch (kernel) {
    case Kernel::kStage:
    case Kernel::kStageSplit:
      return MovedByStage(As<StageArgs>(arguments), kernel == Kernel::kStageSplit);
    case Kernel::kCommit:
      return MovedByCommit(As<CommitArgs>(arguments));
    case Kernel::kDigest:
      return MovedByDigest(As<DigestArgs>(arguments));
    case Kernel::kDiff:
      return MovedByDiff(As<DiffArgs>(arguments), in_host);
    case Kernel::kDiffList:
      return MovedByDiffList(As<DiffArgs>(arguments));
    case Kernel::kGather:
      return MovedByGather(As<GatherArgs>(arguments), in_host);
    case Kernel::kQuantise:
      return MovedByQuantise(As<QuantiseArgs>(arguments));
  }
  return {};
}

}  // namespace

ModelledWork WorkOfKernel(const GpuModel& model, Kernel kernel, const void* arguments,
                          const std::function<bool(uint64_t address)>& in_host) {
  const Moved moved = MovedBy(kernel, arguments, in_host);
  const KernelSpeed& speed = model.kernels[static_cast<size_t>(kernel)];
  const double at_bandwidth = static_cast<double>(moved.read) / model.read_bandwidth +
                              static_cast<double>(moved.copied) / model.copy_bandwidth;
  return {.kind = ModelledOp::Kind::kKernel,
          .kernel = kernel,
          .bytes = moved.read + moved.copied,
          .latency = model.kernel_latency,
          .compute =
              at_bandwidth / speed.share + static_cast<double>(moved.changes) * speed.seconds_each,
          .to_device = static_cast<double>(moved.to_device) / model.to_device_bandwidth,
          .to_host = static_cast<double>(moved.to_host) / model.to_host_bandwidth};
}

ModelledWork WorkOfCopy(const GpuModel& model, ModelledOp::Kind kind, uint64_t bytes, bool pinned) {
  ModelledWork work = {.kind = kind, .bytes = bytes, .latency = model.copy_latency};
  const auto size = static_cast<double>(bytes);
  if (kind == ModelledOp::Kind::kOnDevice) {
    work.compute = 2 * size / model.copy_bandwidth;
  } else if (kind == ModelledOp::Kind::kToDevice) {
    work.to_device = size / (pinned ? model.to_device_bandwidth : model.pageable_bandwidth);
  } else {
    work.to_host = size / (pinned ? model.to_host_bandwidth : model.pageable_bandwidth);
  }
  return work;
}

ModelledWork WorkOfSet(const GpuModel& model, uint64_t bytes) {
  return {.kind = ModelledOp::Kind::kOnDevice,
          .bytes = bytes,
          .latency = model.kernel_latency,
          .compute = static_cast<double>(bytes) / model.copy_bandwidth};
}

}  // namespace dws::cuda
