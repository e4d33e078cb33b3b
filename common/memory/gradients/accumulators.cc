#include "common/memory/gradients/accumulators.h"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <limits>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/float_environment.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Units begin at cache lines, of FP32 gradients as of FP64 sums.
constexpr uint64_t kLineElements = 64 / sizeof(float);

GradientBlocks BlocksOf(const GradientPiece& piece, uint64_t unit_blocks) {
  return piece.blocks.value_or(GradientBlocks{.first = 0, .count = unit_blocks});
}

}  // namespace

// Not inline, for the sake of DefaultFloatEnvironment.
__attribute__((noinline)) double Accumulators::SquaresInOrder() const {
  double sum = 0;
  for (const Block& block : blocks_) sum += block.squares;
  return sum;
}

Result<Accumulators> Accumulators::Make(std::vector<GradientUnit> units, bool exact,
                                        uint64_t& bytes) {
  if (units.size() > limits::kTrainUnitsMax) {
    return InvalidArgumentError("accumulators: expected at most {} units, found {}",
                                limits::kTrainUnitsMax, units.size());
  }
  Accumulators made;
  made.element_bytes_ = exact ? sizeof(double) : sizeof(float);
  const uint64_t elements_max = limits::kRegionBytesMax / made.element_bytes_ - kLineElements;
  uint64_t elements = 0;
  for (GradientUnit& unit : units) {
    if (unit.elements > elements_max - std::min(elements, elements_max)) {
      return InvalidArgumentError(
          "accumulators: expected at most {} elements, found more at unit {}", elements_max,
          unit.name);
    }
    made.units_.push_back(
        {.declared = std::move(unit), .first_element = elements, .first_block = 0});
    elements += CeilDiv(made.units_.back().declared.elements, kLineElements) * kLineElements;
  }
  // A rank without elements has memory, too: none cannot be mapped.
  bytes = std::max(elements, kLineElements) * made.element_bytes_;
  for (Unit& unit : made.units_) {
    unit.first_block = made.blocks_.size();
    unit.block_count = CeilDiv(unit.declared.elements, limits::kBlockElements);
    for (size_t b = 0; b < unit.block_count; ++b) {
      const uint64_t first = b * limits::kBlockElements;
      made.blocks_.push_back(
          {.first_element = unit.first_element + first,
           .elements = std::min<uint64_t>(limits::kBlockElements, unit.declared.elements - first)});
    }
  }
  made.kernels_ = &AddKernelsFor(ActiveInstructionSet());
  return made;
}

Result<Accumulators> Accumulators::Create(std::vector<GradientUnit> units,
                                          AccumulatorOptions options) {
  uint64_t bytes = 0;
  DWS_ASSIGN_OR_RETURN(Accumulators made, Make(std::move(units), options.exact, bytes));
  if (bytes > options.bytes_max) {
    return ResourceExhaustedError("accumulators of {} units: expected at most {} bytes, found {}",
                                  made.units_.size(), options.bytes_max, bytes);
  }
  DWS_ASSIGN_OR_RETURN(made.owned_, CreateHostRegion("dws-accumulators", bytes));
  made.memory_ = made.owned_.region.mutable_bytes();
  return made;
}

Result<Accumulators> Accumulators::Over(std::vector<GradientUnit> units, bool exact,
                                        MutableByteSpan memory) {
  uint64_t bytes = 0;
  DWS_ASSIGN_OR_RETURN(Accumulators made, Make(std::move(units), exact, bytes));
  if (bytes != memory.size()) {
    return InvalidArgumentError("sums of {} units, {}: expected {} bytes of memory, found {}",
                                made.units_.size(), exact ? "FP64" : "FP32", bytes, memory.size());
  }
  made.memory_ = memory;
  return made;
}

Status Accumulators::CheckPiece(size_t unit, DType dtype, uint64_t size_bytes) const {
  return CheckSize({.unit = unit, .blocks = {}, .dtype = dtype, .bytes = {}}, size_bytes);
}

Status Accumulators::Check(const GradientPiece& piece) const {
  DWS_RETURN_IF_ERROR(CheckSize(piece, piece.bytes.size()));
  if (!sealed_) return OkStatus();
  return FailedPreconditionError(
      "gradients of unit {}: expected them before the sums were sealed, or after they were let go",
      units_[piece.unit].declared.name);
}

Status Accumulators::CheckSize(const GradientPiece& piece, uint64_t size_bytes) const {
  if (piece.unit >= units_.size()) {
    return InvalidArgumentError("piece of gradients: expected a unit below {}, found {}",
                                units_.size(), piece.unit);
  }
  const Unit& unit = units_[piece.unit];
  const bool wide = piece.dtype == DType::kF64 && exact();
  if (piece.dtype != DType::kBF16 && piece.dtype != DType::kF32 && !wide) {
    return InvalidArgumentError("gradients of unit {}: expected BF16 or F32{}, found {}",
                                unit.declared.name, exact() ? " or F64" : "",
                                ToString(piece.dtype));
  }
  const GradientBlocks blocks = BlocksOf(piece, unit.block_count);
  if (blocks.first > unit.block_count || blocks.count > unit.block_count - blocks.first) {
    return InvalidArgumentError(
        "gradients of unit {}: expected blocks of its {}, found {} blocks from block {}",
        unit.declared.name, unit.block_count, blocks.count, blocks.first);
  }
  uint64_t elements = 0;
  if (blocks.count > 0) {
    const Block& last = blocks_[unit.first_block + blocks.first + blocks.count - 1];
    elements =
        last.first_element + last.elements - blocks_[unit.first_block + blocks.first].first_element;
  }
  const uint64_t bytes = elements * ElementBytes(piece.dtype);
  if (size_bytes == bytes) return OkStatus();
  return InvalidArgumentError(
      "gradients of unit {}: expected {} bytes, {} elements of {}, found {}", unit.declared.name,
      bytes, elements, ToString(piece.dtype), size_bytes);
}

Status Accumulators::Add(const GradientPiece& piece, ThreadPool& pool) {
  DWS_RETURN_IF_ERROR(Check(piece));
  const Unit& unit = units_[piece.unit];
  const GradientBlocks blocks = BlocksOf(piece, unit.block_count);
  const AddLoops& loops = piece.dtype == DType::kBF16  ? kernels_->bf16
                          : piece.dtype == DType::kF32 ? kernels_->fp32
                                                       : kernels_->fp64;
  const bool exact = this->exact();
  const uint64_t piece_block_bytes = uint64_t{limits::kBlockElements} * ElementBytes(piece.dtype);
  std::atomic<bool> inexact = false;
  pool.ParallelFor(blocks.count, [&](size_t index, size_t) {
    const DefaultFloatEnvironment environment;
    Block& block = blocks_[unit.first_block + blocks.first + index];
    const std::byte* const from = piece.bytes.data() + index * piece_block_bytes;
    if (!block.stored) {
      (exact ? loops.store_exact : loops.store)(At(block), from, block.elements);
      block.stored = true;
    } else if (!exact) {
      loops.add(At(block), from, block.elements);
    } else if (loops.add_exact(At(block), from, block.elements)) {
      inexact.store(true, std::memory_order_relaxed);
    }
  });
  inexact_ = inexact_ || inexact.load();
  return OkStatus();
}

// FP32 gradients take the first half of the memory of FP64 sums. Waves keep a block's gradients off
// sums that have not been read yet: a wave is blocks whose elements are from s up to 2s. What it
// writes ends at byte 8s, where what it reads begins. Only a block of which that cannot be said is
// a wave alone: it is rounded in ascending order, and its elements never move up.
void Accumulators::RoundAll(ThreadPool& pool) {
  std::byte* const memory = memory_.data();
  size_t first = 0;
  while (first < blocks_.size()) {
    const uint64_t end = 2 * blocks_[first].first_element;
    size_t next = first + 1;
    while (next < blocks_.size() && blocks_[next].first_element + blocks_[next].elements <= end) {
      ++next;
    }
    pool.ParallelFor(next - first, [&](size_t index, size_t) {
      const DefaultFloatEnvironment environment;
      const Block& block = blocks_[first + index];
      std::byte* const to = memory + block.first_element * sizeof(float);
      if (block.stored) kernels_->round(to, At(block), block.elements);
    });
    DWS_KILLPOINT("sender.train.inside_seal");
    first = next;
  }
}

Result<GradientSum> Accumulators::Seal(ThreadPool& pool) {
  if (sealed_) return FailedPreconditionError("the sums are sealed already");
  const bool exact = this->exact();
  if (exact) RoundAll(pool);
  std::byte* const memory = memory_.data();
  pool.ParallelFor(blocks_.size(), [&](size_t index, size_t) {
    const DefaultFloatEnvironment environment;
    Block& block = blocks_[index];
    std::byte* const gradient = memory + block.first_element * sizeof(float);
    if (!block.stored) std::memset(gradient, 0, block.elements * sizeof(float));
    block.squares = kernels_->sum_of_squares(gradient, block.elements);
  });
  sealed_ = true;
  const DefaultFloatEnvironment environment;
  GradientSum sum = {.of_squares = SquaresInOrder(), .exact = all_exact()};
  sum.finite = std::isfinite(sum.of_squares);
  if (std::isnan(sum.of_squares)) sum.of_squares = std::numeric_limits<double>::quiet_NaN();
  return sum;
}

void Accumulators::LetGo() {
  for (Block& block : blocks_) block.stored = false;
  sealed_ = inexact_ = false;
}

ByteSpan Accumulators::Sums(size_t unit) const {
  DWS_CHECK(!sealed_ && unit < units_.size());
  return ByteSpan(memory_).subspan(units_[unit].first_element * element_bytes_,
                                   units_[unit].declared.elements * element_bytes_);
}

ByteSpan Accumulators::Gradient(size_t unit) const {
  DWS_CHECK(sealed_ && unit < units_.size());
  return ByteSpan(memory_).subspan(OffsetBytes(unit),
                                   units_[unit].declared.elements * sizeof(float));
}

}  // namespace dws
