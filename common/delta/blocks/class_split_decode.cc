#include <algorithm>
#include <bit>
#include <memory>

#include "common/base/check.h"
#include "common/delta/bits/element.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/exceptions.h"
#include "common/delta/blocks/split_rice.h"

namespace dws {
namespace {

using class_split::kCodeBits;
using class_split::kCountWidthBits;

// The head of one class in the payload.
struct CodedClass {
  uint32_t count = 0;  // of coded ranks
  uint32_t k = 0;
  bool inverted = false;
};

// The memory for reading a block, apart from its output. Too large for the stack.
struct Scratch {
  kernels::ClassIndex index;
  kernels::BlockMask mask;
  std::array<CodedClass, kClassesMax> classes;
  HotMagnitudes hot;
  std::vector<uint16_t> ranks;           // of all classes, one after the other
  std::vector<uint8_t> magnitude_bytes;  // of the changed elements, before the change
};

Scratch& ThreadScratch() {
  thread_local std::unique_ptr<Scratch> scratch;
  if (scratch == nullptr) scratch = std::make_unique_for_overwrite<Scratch>();
  return *scratch;
}

// Reads the heads of all classes. Returns the bit after them.
Result<uint64_t> ReadClassHeads(const EncodedBlockView& block, uint32_t element_count,
                                size_t class_count, Scratch& scratch) {
  const uint32_t count_bits = (block.parameters & LowBits(kCountWidthBits)) + 1;
  const uint64_t end = class_count * (count_bits + kCodeBits);
  if (end > block.payload.size() * 8) {
    return DataLossError("class-split: the heads of {} classes are cut off at {} bytes",
                         class_count, block.payload.size());
  }
  uint32_t count_max = 1;
  uint64_t at = 0;
  for (size_t c = 0; c < class_count; ++c) {
    const uint64_t head = LoadBits(block.payload, at, count_bits + kCodeBits);
    at += count_bits + kCodeBits;
    CodedClass& coded = scratch.classes[c];
    coded = {.count = static_cast<uint32_t>(head & LowBits(count_bits)),
             .k = static_cast<uint32_t>(head >> count_bits & LowBits(GapCoding::kParameterBits)),
             .inverted = (head >> count_bits & class_split::kInvertedFlag) != 0};
    if (coded.count > element_count || (coded.count == 0 && coded.k != 0)) {
      return DataLossError("class-split: class {} has {} ranks in {} elements, parameter {}", c,
                           coded.count, element_count, coded.k);
    }
    count_max = std::max(count_max, coded.count);
  }
  if (static_cast<uint32_t>(std::bit_width(count_max)) != count_bits) {
    return DataLossError("class-split: counts up to {} in {} bits", count_max, count_bits);
  }
  return end;
}

// Reads the coded ranks of all classes. Returns the end of the quotient planes.
Result<uint64_t> ReadRanks(const EncodedBlockView& block, uint32_t element_count,
                           size_t class_count, GapPlanes planes, DecodedBlock& decoded,
                           Scratch& scratch) {
  uint64_t total = 0;
  for (size_t c = 0; c < class_count; ++c) total += scratch.classes[c].count;
  scratch.ranks.resize(total);
  std::span<uint16_t> left = scratch.ranks;
  for (size_t c = 0; c < class_count; ++c) {
    const CodedClass& coded = scratch.classes[c];
    if (coded.count == 0) continue;
    decoded.scratch.resize(coded.count);
    const std::optional<uint64_t> end = ReadGaps(block.payload, planes, coded.k, element_count,
                                                 decoded.scratch, left.first(coded.count));
    if (!end.has_value()) return DataLossError("class-split: the ranks of class {} are damaged", c);
    planes.remainders += uint64_t{coded.count} * coded.k;
    planes.quotients = *end;
    left = left.subspan(coded.count);
  }
  return planes.quotients;
}

// Marks the changed elements of one class in the mask. Before the call, the mask must have all
// elements of the class if the class is inverted, and none otherwise. Returns the number of changed
// elements. DATA_LOSS: a rank is beyond the class.
Result<uint64_t> MarkClass(const CodedClass& coded, size_t c, std::span<const uint16_t> ranks,
                           FetchAhead& ahead, Scratch& scratch) {
  const uint32_t size = scratch.index.sizes[c];
  if (!ranks.empty() && ranks.back() >= size) {
    return DataLossError("class-split: rank {} in class {}, which has {} elements", ranks.back(), c,
                         size);
  }
  kernels::FlipRanks(ActiveInstructionSet(), scratch.index, c, ranks.data(), coded.count,
                     scratch.mask.data(), ahead);
  return coded.inverted ? size - coded.count : coded.count;
}

// Finds the positions of the changed elements from the ranks. DATA_LOSS: a rank is beyond its
// class, or the number of changes is not nnz.
Status FindPositions(const EncodedBlockView& block, kernels::ClassIndexInput input,
                     DecodedBlock& decoded, Scratch& scratch) {
  input.marked = scratch.mask.data();
  for (size_t c = 0; c < input.classes->class_count(); ++c) {
    if (scratch.classes[c].inverted) input.marked_classes |= static_cast<uint8_t>(1U << c);
  }
  kernels::IndexClasses(ActiveInstructionSet(), input, scratch.index);
  // The next block, which usually lies behind this one in memory. With AVX-512 the index has
  // already fetched the first part of it.
  const uint64_t size = uint64_t{input.count} * input.element_bytes;
  const auto next = reinterpret_cast<uintptr_t>(input.elements) + size;
  FetchAhead ahead{.next = next + kernels::kIndexAheadBytes, .end = next + size};
  uint64_t nnz = 0;
  std::span<const uint16_t> left = scratch.ranks;
  for (size_t c = 0; c < input.classes->class_count(); ++c) {
    const CodedClass& coded = scratch.classes[c];
    DWS_ASSIGN_OR_RETURN(const uint64_t marked,
                         MarkClass(coded, c, left.first(coded.count), ahead, scratch));
    nnz += marked;
    left = left.subspan(coded.count);
  }
  if (nnz != block.nnz) {
    return DataLossError("class-split: its classes have {} changes, expected {}", nnz, block.nnz);
  }
  decoded.positions.resize(block.nnz + kernels::kNumbersSlack);
  const uint32_t found = kernels::ListOnes(ActiveInstructionSet(), scratch.mask.data(), input.count,
                                           decoded.positions.data());
  decoded.positions.resize(block.nnz);
  DWS_CHECK(found == block.nnz);
  return OkStatus();
}

// Replaces the steps of the hot changes, which are +-1 so far, by steps of their true sizes.
Status ApplyHot(uint32_t element_bits, const Scratch& scratch, std::vector<uint64_t>& steps) {
  const uint64_t mask = LowBits(element_bits);
  const uint64_t magnitude_max = uint64_t{1} << (element_bits - 1);  // of a negative step
  for (size_t i = 0; i < scratch.hot.changes.size(); ++i) {
    uint64_t& step = steps[scratch.hot.changes[i]];
    const uint64_t negative = step == 1 ? 0 : 1;
    if (scratch.hot.values[i] > magnitude_max - 2 + negative || (step != 1 && step != mask)) {
      return DataLossError(
          "class-split: hot change {} has a magnitude of {} "
          "above 1, or is an exception too",
          scratch.hot.changes[i], scratch.hot.values[i]);
    }
    step = ((scratch.hot.values[i] + 1) ^ (0 - negative)) + negative;
    step &= mask;
  }
  return OkStatus();
}

// Fills the steps of the changes at decoded.positions. `signs` and `sizes` are the first bits of
// those planes.
Status ReadSteps(DType dtype, const EncodedBlockView& block, const ClassTable& table,
                 ByteSpan before, uint64_t signs, uint64_t sizes, DecodedBlock& decoded,
                 Scratch& scratch) {
  const uint32_t element_bits = ElementBytes(dtype) * 8;
  decoded.values.resize(block.nnz);
  ReadSigns(block.payload, signs, element_bits, decoded.values);
  LoadMagnitudeBytes(dtype, before, decoded.positions, scratch.magnitude_bytes);
  FindHotChanges(table, scratch.magnitude_bytes, element_bits, scratch.hot);
  scratch.hot.escape_width =
      block.parameters >> class_split::kEscapeShift & LowBits(class_split::kEscapeWidthBits);
  if (scratch.hot.escape_width >= element_bits) {
    return DataLossError("class-split: escapes of {} bits, expected fewer than the element's {}",
                         scratch.hot.escape_width, element_bits);
  }
  decoded.scratch.resize(scratch.hot.changes.size());
  const std::optional<uint64_t> hot_end =
      ReadHotMagnitudes(block.payload, sizes, decoded.scratch, scratch.hot);
  if (!hot_end.has_value()) {
    return DataLossError("class-split: the magnitudes of {} hot changes are damaged",
                         scratch.hot.changes.size());
  }
  uint64_t end = *hot_end;
  if ((block.parameters & class_split::kExceptionsFlag) != 0) {
    DWS_ASSIGN_OR_RETURN(end, ReadExceptions(block.payload, end, element_bits, decoded));
  }
  DWS_RETURN_IF_ERROR(ApplyHot(element_bits, scratch, decoded.values));
  if (!EndsCleanly(block.payload, end)) {
    return DataLossError(
        "class-split: planes end at bit {} of {} bytes, or "
        "the padding is not zero",
        end, block.payload.size());
  }
  return OkStatus();
}

Status Read(DType dtype, const EncodedBlockView& block, const ClassTable& table, ByteSpan before,
            DecodedBlock& decoded, Scratch& scratch) {
  const uint32_t element_bytes = ElementBytes(dtype);
  const kernels::ClassIndexInput input{
      .elements = before.data(),
      .element_bytes = element_bytes,
      .count = static_cast<uint32_t>(before.size() / element_bytes),
      .classes = &table};
  const size_t class_count = table.class_count();
  DWS_ASSIGN_OR_RETURN(const uint64_t remainders,
                       ReadClassHeads(block, input.count, class_count, scratch));
  uint64_t signs = remainders;
  for (size_t c = 0; c < class_count; ++c) {
    signs += uint64_t{scratch.classes[c].count} * scratch.classes[c].k;
  }
  const uint64_t quotients = signs + block.nnz;
  if (quotients > block.payload.size() * 8) {
    return DataLossError(
        "class-split: remainders and signs of {} changes are "
        "cut off at {} bytes",
        block.nnz, block.payload.size());
  }
  DWS_ASSIGN_OR_RETURN(
      const uint64_t sizes,
      ReadRanks(block, input.count, class_count, {.remainders = remainders, .quotients = quotients},
                decoded, scratch));
  DWS_RETURN_IF_ERROR(FindPositions(block, input, decoded, scratch));
  return ReadSteps(dtype, block, table, before, signs, sizes, decoded, scratch);
}

}  // namespace

Status ReadClassSplit(DType dtype, const EncodedBlockView& block, const ClassTable& table,
                      ByteSpan before, DecodedBlock& decoded) {
  const int shift = (block.parameters >> class_split::kShiftShift) - class_split::kShiftBias;
  if (!TableFits(table, dtype)) {
    return DataLossError("class-split: no block of {} can have this class table", ToString(dtype));
  }
  const std::optional<ClassTable> shifted = ShiftTable(table, shift, dtype);
  if (!shifted.has_value()) {
    return DataLossError("class-split: its class table cannot be shifted by {}", shift);
  }
  decoded.kind = DecodedBlock::Kind::kSteps;
  return Read(dtype, block, *shifted, before, decoded, ThreadScratch());
}

}  // namespace dws
