#include <algorithm>
#include <bit>

#include "common/base/check.h"
#include "common/delta/bits/element.h"
#include "common/delta/bits/escapes.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/kernels/class_steps.h"

namespace dws {
namespace {

using class_split::kCodeBits;

// Replaces `ranks` by the ranks below `size` that are not among them. The caller calls it only if
// that makes fewer ranks, so they fit, with the slack that ListOnes needs. Returns their number.
uint32_t Complement(uint32_t size, std::span<uint16_t> ranks, std::vector<uint64_t>& mask) {
  mask.resize(CeilDiv(size, 64));
  size_t next = 0;    // of the words
  uint64_t word = 0;  // has a bit for each of `ranks` in this word
  for (const uint16_t rank : ranks) {
    for (; next < rank / 64U; word = 0) mask[next++] = ~word;
    word |= uint64_t{1} << (rank % 64);
  }
  for (; next < mask.size(); word = 0) mask[next++] = ~word;
  return kernels::ListOnes(ActiveInstructionSet(), mask.data(), size, ranks.data());
}

// Codes the changed elements of a class of `size` elements, or the unchanged ones if these are
// fewer. `ranks`, of the changed elements, lie in plan.ranks.
ClassSplitPlan::Class PlanClass(std::span<uint16_t> ranks, uint32_t size, ClassSplitPlan& plan) {
  ClassSplitPlan::Class out;
  out.inverted = uint64_t{ranks.size()} * 2 > size;
  if (out.inverted) {
    ranks = ranks.first(Complement(size, ranks, plan.rank_mask));
  }
  out.ranks = ranks;
  if (!ranks.empty()) out.gaps = ChooseGapCoding(ranks);
  return out;
}

// The shifts that keep every number of the table in its range.
struct ShiftRange {
  int first = 0;
  int last = 0;
};

ShiftRange ShiftsOf(const ClassTable& table, DType dtype) {
  const int byte_max = MagnitudeByteMax(ElementBytes(dtype));
  int low = std::min(table.hot_below, table.hot_scale);
  int high = std::max(table.hot_below, table.hot_scale);
  if (table.threshold_count > 0) {
    low = std::min(low, table.thresholds[0] - 1);
    high = std::max<int>(high, table.thresholds[table.threshold_count - 1]);
  }
  return {.first = -low, .last = byte_max - high};
}

// How many of a block's first changes decide its shift.
constexpr size_t kSizesMax = 8192;
static_assert(kSizesMax % kernels::kStepGroup == 0);

// Fills plan.sizes and plan.cold_bits for the first `some` changes. Returns the hot_scale that
// their steps other than +-1 suggest (a size has about as many bits as its Rice parameter), or
// nullopt if there are no such steps.
std::optional<int> LoadSizes(const SplitRicePlan& split_rice, size_t some, ClassSplitPlan& plan) {
  constexpr uint32_t kGapBits = 6;  // an exception's gap: about one in 20 changes is an exception
  plan.sizes.assign(some, 0);       // of steps of +-1
  plan.cold_bits.assign(some, 0);
  int64_t scales = 0;
  size_t count = 0;
  for (; count < split_rice.exceptions.size(); ++count) {
    const uint16_t change = split_rice.exceptions[count];
    if (change >= some) break;
    const uint64_t magnitude = split_rice.magnitudes[count];  // |step| - 2
    const int width = std::bit_width(magnitude);
    plan.sizes[change] = static_cast<uint32_t>(std::min<uint64_t>(magnitude, 0xFFFF'FFFE)) + 1;
    plan.cold_bits[change] = kGapBits + 2 * static_cast<uint32_t>(width);
    scales += plan.magnitude_bytes[change] + width;
  }
  if (count == 0) return std::nullopt;
  return static_cast<int>(scales / static_cast<int64_t>(count));
}

// The shift of the table for which the sizes of the steps cost least, by a local search: from the
// better of 0 and what the sizes suggest, by 1 while the cost falls. Updates of one version have
// about one size, and the block shows it better than earlier versions.
int ChooseShift(DType dtype, const SplitRicePlan& split_rice, const ClassTable& table,
                ClassSplitPlan& plan) {
  const ShiftRange range = ShiftsOf(table, dtype);
  const int first = std::max(range.first, -class_split::kShiftBias);
  const int last = std::min(range.last, class_split::kShiftBias - 1);
  const size_t changes = plan.magnitude_bytes.size();
  const size_t some =
      std::min(CeilDiv(changes, kernels::kStepGroup) * kernels::kStepGroup, kSizesMax);
  const std::optional<int> scale = LoadSizes(split_rice, some, plan);
  if (some > changes) plan.magnitude_bytes.resize(some, 0xFF);
  const kernels::SizedSteps steps{.bytes = plan.magnitude_bytes.data(),
                                  .sizes = plan.sizes.data(),
                                  .cold_bits = plan.cold_bits.data(),
                                  .count = some};
  int best = 0;
  uint64_t best_bits = ~uint64_t{0};
  const auto improve = [&](int shift) {
    const uint64_t bits =
        kernels::SumStepBits(ActiveInstructionSet(), steps,
                             {.below = static_cast<uint8_t>(table.hot_below + shift),
                              .scale = static_cast<uint8_t>(table.hot_scale + shift),
                              .width_max = HotWidthMax(ElementBytes(dtype) * 8),
                              .quotient_max = kQuotientMax});
    if (bits >= best_bits) return false;
    best_bits = bits;
    best = shift;
    return true;
  };
  improve(0);
  const int suggested = std::clamp(scale.value_or(table.hot_scale) - table.hot_scale, first, last);
  if (suggested != 0) improve(suggested);
  const int start = best;
  while (best > first && improve(best - 1)) {
  }
  while (best >= start && best < last && improve(best + 1)) {
  }
  plan.magnitude_bytes.resize(changes);
  return best;
}

// Divides the steps into hot ones, exceptions, and steps of +-1. It has no branch, because the
// processor cannot predict the kind of a step.
void SortSteps(const SplitRicePlan& split_rice, uint32_t element_bits, ClassSplitPlan& plan) {
  const size_t others = split_rice.exceptions.size();
  FindHotChanges(plan.table, plan.magnitude_bytes, element_bits, plan.hot);
  const size_t hot = plan.hot.changes.size();
  plan.hot.values.assign(hot + 1, 0);
  plan.hot_before.resize(plan.hot.mask.size());
  uint32_t before = 0;
  for (size_t i = 0; i < plan.hot.mask.size(); ++i) {
    plan.hot_before[i] = before;
    before += static_cast<uint32_t>(std::popcount(plan.hot.mask[i]));
  }
  plan.exceptions.resize(others + 1);
  plan.magnitudes.resize(others + 1);
  size_t exceptions = 0;
  for (size_t i = 0; i < others; ++i) {
    const uint16_t change = split_rice.exceptions[i];
    const uint64_t word = plan.hot.mask[change / 64];
    const bool is_hot = (word >> (change % 64) & 1) != 0;
    const size_t rank = plan.hot_before[change / 64] +
                        static_cast<size_t>(std::popcount(word & LowBits(change % 64)));
    plan.hot.values[is_hot ? rank : hot] = split_rice.magnitudes[i] + 1;
    plan.exceptions[exceptions] = change;
    plan.magnitudes[exceptions] = split_rice.magnitudes[i];
    exceptions += is_hot ? 0 : 1;
  }
  plan.hot.values.resize(hot);
  plan.exceptions.resize(exceptions);
  plan.magnitudes.resize(exceptions);
}

void PlanSteps(DType dtype, const BlockChanges& changes, const SplitRicePlan& split_rice,
               ClassSplitPlan& plan) {
  SortSteps(split_rice, ElementBytes(dtype) * 8, plan);
  plan.bits += changes.size();  // signs
  PlanHotMagnitudes(plan.hot);
  plan.bits += plan.hot.bits;
  if (plan.exceptions.empty()) return;
  plan.exception_coding = ChooseExceptionCoding(plan.exceptions, plan.magnitudes);
  plan.bits += plan.exception_coding.bits();
}

// For each class the ranks of its changed elements.
std::array<std::span<uint16_t>, kClassesMax> RanksByClass(const BlockChanges& changes,
                                                          ClassSplitPlan& plan) {
  const auto count = static_cast<uint32_t>(changes.size());
  const uint32_t stride = count + kernels::kNumbersSlack;
  const size_t class_count = plan.table.class_count();
  plan.class_numbers.resize(count);
  kernels::ClassesOf(ActiveInstructionSet(), plan.magnitude_bytes.data(), count, plan.table,
                     plan.class_numbers.data());
  plan.scratch.resize(count);
  kernels::RankElements(ActiveInstructionSet(), plan.index, changes.positions.data(),
                        plan.class_numbers.data(), count, plan.scratch.data());
  if (plan.ranks.size() < stride * class_count) plan.ranks.resize(stride * class_count);
  std::array<uint32_t, kClassesMax> sizes;
  kernels::SortByClass(ActiveInstructionSet(), plan.class_numbers.data(), plan.scratch.data(),
                       count, class_count, stride, plan.ranks.data(), sizes.data());
  std::array<std::span<uint16_t>, kClassesMax> ranks;
  for (size_t c = 0; c < class_count; ++c) {
    ranks[c] = std::span(plan.ranks).subspan(c * stride, sizes[c]);
  }
  return ranks;
}

}  // namespace

bool TableFits(const ClassTable& table, DType dtype) {
  if (MappingOf(dtype) != Mapping::kFloat) return false;
  return ShiftsOf(table, dtype).last >= 0;
}

std::optional<ClassTable> ShiftTable(const ClassTable& table, int shift, DType dtype) {
  const ShiftRange range = ShiftsOf(table, dtype);
  if (shift < range.first || shift > range.last) return std::nullopt;
  ClassTable shifted = table;
  const auto move = [shift](uint8_t& byte) { byte = static_cast<uint8_t>(byte + shift); };
  for (size_t i = 0; i < table.threshold_count; ++i) move(shifted.thresholds[i]);
  move(shifted.hot_below);
  move(shifted.hot_scale);
  return shifted;
}

void PlanClassSplit(DType dtype, const BlockChanges& changes, const SplitRicePlan& split_rice,
                    ByteSpan before, const ClassTable& table, ClassSplitPlan& plan) {
  DWS_CHECK(changes.size() != 0 && TableFits(table, dtype));
  const uint32_t element_bytes = ElementBytes(dtype);
  const kernels::ClassIndexInput input{
      .elements = before.data(),
      .element_bytes = element_bytes,
      .count = static_cast<uint32_t>(before.size() / element_bytes),
      .classes = &plan.table};
  DWS_CHECK(changes.positions.back() < input.count);
  LoadMagnitudeBytes(dtype, before, changes.positions, plan.magnitude_bytes);
  plan.shift = ChooseShift(dtype, split_rice, table, plan);
  plan.table = *ShiftTable(table, plan.shift, dtype);
  kernels::IndexClasses(ActiveInstructionSet(), input, plan.index);
  const std::array<std::span<uint16_t>, kClassesMax> ranks = RanksByClass(changes, plan);
  plan.bits = 0;
  uint32_t count_max = 1;
  for (size_t c = 0; c < table.class_count(); ++c) {
    plan.classes[c] = PlanClass(ranks[c], plan.index.sizes[c], plan);
    plan.bits += plan.classes[c].gaps.bits;
    count_max = std::max(count_max, static_cast<uint32_t>(plan.classes[c].ranks.size()));
  }
  plan.count_bits = static_cast<uint32_t>(std::bit_width(count_max));
  plan.bits += table.class_count() * (plan.count_bits + kCodeBits);
  PlanSteps(dtype, changes, split_rice, plan);
}

EncodedBlock WriteClassSplit(const BlockChanges& changes, const SplitRicePlan& split_rice,
                             const ClassSplitPlan& plan) {
  EncodedBlock block{
      .mode = BlockMode::kClassSplit,
      .nnz = static_cast<uint32_t>(changes.size()),
      .parameters = static_cast<uint16_t>(
          (plan.count_bits - 1) | (plan.exceptions.empty() ? 0 : class_split::kExceptionsFlag) |
          plan.hot.escape_width << class_split::kEscapeShift |
          static_cast<uint32_t>(plan.shift + class_split::kShiftBias) << class_split::kShiftShift),
      .payload = std::vector<std::byte>(plan.PayloadBytes() + BitWriter::kSlackBytes)};
  BitWriter writer(block.payload.data());
  const size_t class_count = plan.table.class_count();
  for (size_t c = 0; c < class_count; ++c) {
    const ClassSplitPlan::Class& each = plan.classes[c];
    writer.Put(each.ranks.size(), plan.count_bits);
    writer.Put(each.gaps.k | (each.inverted ? class_split::kInvertedFlag : 0), kCodeBits);
  }
  for (size_t c = 0; c < class_count; ++c) {
    const ClassSplitPlan::Class& each = plan.classes[c];
    if (!each.ranks.empty()) WriteGapRemainders(each.ranks, each.gaps.k, writer);
  }
  WriteSigns(split_rice.signs, changes.size(), writer);
  for (size_t c = 0; c < class_count; ++c) {
    const ClassSplitPlan::Class& each = plan.classes[c];
    if (!each.ranks.empty()) WriteGapQuotients(each.ranks, each.gaps.k, writer);
  }
  WriteHotMagnitudes(plan.hot, writer);
  if (!plan.exceptions.empty()) {
    WriteExceptions(plan.exceptions, plan.magnitudes, plan.exception_coding, writer);
  }
  DWS_CHECK(writer.end() == block.payload.data() + plan.PayloadBytes());
  block.payload.resize(plan.PayloadBytes());
  return block;
}

}  // namespace dws
