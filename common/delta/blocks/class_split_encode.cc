#include <algorithm>
#include <bit>

#include "common/base/check.h"
#include "common/delta/bits/element.h"
#include "common/delta/bits/escapes.h"
#include "common/delta/blocks/class_split.h"

namespace dws {
namespace {

using class_split::kCodeBits;

// Replaces `ranks` by the ranks below `size` that are not among them. There are fewer of these, so
// they fit.
void Complement(uint32_t size, std::span<uint16_t> ranks, std::vector<uint16_t>& scratch) {
  scratch.assign(ranks.begin(), ranks.end());
  uint16_t* out = ranks.data();
  uint32_t next = 0;
  for (const uint16_t rank : scratch) {
    for (; next < rank; ++next) *out++ = static_cast<uint16_t>(next);
    ++next;
  }
  for (; next < size; ++next) *out++ = static_cast<uint16_t>(next);
}

// Codes the changed elements of a class of `size` elements, or the unchanged ones if these are
// fewer. `ranks`, of the changed elements, lie in plan.ranks.
ClassSplitPlan::Class PlanClass(std::span<uint16_t> ranks, uint32_t size, ClassSplitPlan& plan) {
  ClassSplitPlan::Class out;
  out.inverted = uint64_t{ranks.size()} * 2 > size;
  if (out.inverted) {
    Complement(size, ranks, plan.scratch);
    ranks = ranks.first(size - ranks.size());
  }
  out.ranks = ranks;
  if (!ranks.empty()) out.gaps = ChooseGapCoding(ranks);
  return out;
}

template <typename Element>
void LoadMagnitudeBytes(const BlockChanges& changes, ByteSpan before,
                        std::vector<uint8_t>& magnitude_bytes) {
  magnitude_bytes.resize(changes.size());
  for (size_t i = 0; i < changes.size(); ++i) {
    magnitude_bytes[i] = MagnitudeByte(LoadLe<typename Element::Bits>(
        before.data() + size_t{changes.positions[i]} * Element::kBytes));
  }
}

// An estimate of the bits of one step that is not +-1; `magnitude` is its size minus 2.
uint64_t OtherStepBits(const ClassTable& table, uint8_t byte, uint64_t magnitude,
                       uint32_t element_bits) {
  constexpr uint64_t kGapBits = 6;  // of an exception: about one in 20 changes is one
  if (byte >= table.hot_below) {
    return kGapBits + 2 * static_cast<uint64_t>(std::bit_width(magnitude));
  }
  const uint8_t width = HotWidth(table, byte, element_bits);
  return width + 1 + std::min<uint64_t>((magnitude + 1) >> width, kQuotientMax);
}

// The shift of the table for which the sizes of the steps cost least, the nearest to 0 among
// equals. Updates of one version have about one size, and the block shows it better than earlier
// versions.
int ChooseShift(DType dtype, const SplitRicePlan& split_rice, const ClassTable& table,
                const ClassSplitPlan& plan) {
  constexpr size_t kOthersMax = 256;  // steps other than +-1 to look at; more add little
  const uint32_t element_bits = ElementBytes(dtype) * 8;
  const size_t others = std::min(split_rice.exceptions.size(), kOthersMax);
  std::array<uint32_t, 256> ones{};  // steps of +-1, by magnitude byte of the old element
  for (const uint8_t byte : plan.magnitude_bytes) ++ones[byte];
  for (const uint16_t change : split_rice.exceptions) --ones[plan.magnitude_bytes[change]];
  std::array<uint8_t, 256> bytes;  // those with steps of +-1
  size_t byte_count = 0;
  for (size_t byte = 0; byte < ones.size(); ++byte) {
    bytes[byte_count] = static_cast<uint8_t>(byte);
    byte_count += ones[byte] != 0 ? 1 : 0;
  }
  int best = 0;
  uint64_t best_bits = ~uint64_t{0};
  for (int n = 0; n < 2 * class_split::kShiftBias; ++n) {  // 0, -1, 1, -2, ...
    const int shift = n % 2 == 0 ? n / 2 : -(n + 1) / 2;
    const std::optional<ClassTable> shifted = ShiftTable(table, shift, dtype);
    if (!shifted.has_value()) continue;
    uint64_t bits = 0;
    for (size_t b = 0; b < byte_count && bytes[b] < shifted->hot_below; ++b) {
      bits += uint64_t{ones[bytes[b]]} * (HotWidth(*shifted, bytes[b], element_bits) + 1U);
    }
    for (size_t i = 0; i < others && bits < best_bits; ++i) {
      const uint8_t byte = plan.magnitude_bytes[split_rice.exceptions[i]];
      bits += OtherStepBits(*shifted, byte, split_rice.magnitudes[i], element_bits);
    }
    if (bits >= best_bits) continue;
    best_bits = bits;
    best = shift;
  }
  return best;
}

// Divides the steps into hot ones, exceptions, and steps of +-1. Without a branch: the processor
// cannot predict which a step is.
void SortSteps(const SplitRicePlan& split_rice, uint32_t element_bits, ClassSplitPlan& plan) {
  const size_t count = plan.magnitude_bytes.size();
  const size_t others = split_rice.exceptions.size();
  plan.hot.values.resize(count + 1);
  plan.hot.widths.resize(count + 1);
  plan.exceptions.resize(others + 1);
  plan.magnitudes.resize(others + 1);
  size_t hot = 0;
  size_t exceptions = 0;
  size_t next = 0;  // of split_rice.exceptions
  for (size_t i = 0; i < count; ++i) {
    const uint8_t byte = plan.magnitude_bytes[i];
    const bool is_hot = byte < plan.table.hot_below;
    const bool is_other = next < others && split_rice.exceptions[next] == i;
    const uint64_t magnitude = is_other ? split_rice.magnitudes[next] : 0;  // minus 2
    plan.hot.values[hot] = magnitude + (is_other ? 1 : 0);
    plan.hot.widths[hot] = HotWidth(plan.table, byte, element_bits);
    hot += is_hot ? 1 : 0;
    plan.exceptions[exceptions] = static_cast<uint16_t>(i);
    plan.magnitudes[exceptions] = magnitude;
    exceptions += is_other && !is_hot ? 1 : 0;
    next += is_other ? 1 : 0;
  }
  plan.hot.values.resize(hot);
  plan.hot.widths.resize(hot);
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
  const size_t count = changes.size();
  std::array<uint8_t, 256> class_of{};
  for (size_t i = 0; i < plan.table.threshold_count; ++i) {
    for (size_t byte = plan.table.thresholds[i]; byte < class_of.size(); ++byte) ++class_of[byte];
  }
  plan.class_numbers.resize(count);
  for (size_t i = 0; i < count; ++i) plan.class_numbers[i] = class_of[plan.magnitude_bytes[i]];
  plan.scratch.resize(count);
  kernels::RankElements(ActiveInstructionSet(), plan.index, changes.positions.data(),
                        plan.class_numbers.data(), static_cast<uint32_t>(count),
                        plan.scratch.data());
  plan.ranks.resize(count * plan.table.class_count());
  std::array<uint16_t*, kClassesMax> ends{};
  for (size_t c = 0; c < plan.table.class_count(); ++c) ends[c] = plan.ranks.data() + c * count;
  for (size_t i = 0; i < count; ++i) *ends[plan.class_numbers[i]]++ = plan.scratch[i];
  std::array<std::span<uint16_t>, kClassesMax> ranks;
  for (size_t c = 0; c < plan.table.class_count(); ++c) {
    ranks[c] = std::span(plan.ranks.data() + c * count, ends[c]);
  }
  return ranks;
}

}  // namespace

bool TableFits(const ClassTable& table, DType dtype) {
  if (MappingOf(dtype) != Mapping::kFloat) return false;
  const uint8_t byte_max = ElementBytes(dtype) == 1 ? 0x7F : 0xFF;
  if (table.hot_below > byte_max || table.hot_scale > byte_max) return false;
  return table.threshold_count == 0 || table.thresholds[table.threshold_count - 1] <= byte_max;
}

std::optional<ClassTable> ShiftTable(const ClassTable& table, int shift, DType dtype) {
  ClassTable shifted = table;
  const int byte_max = ElementBytes(dtype) == 1 ? 0x7F : 0xFF;
  bool reachable = true;
  const auto move = [&](uint8_t& byte, int low) {
    const int moved = byte + shift;
    reachable &= moved >= low && moved <= byte_max;
    byte = static_cast<uint8_t>(moved);
  };
  for (size_t i = 0; i < table.threshold_count; ++i) move(shifted.thresholds[i], 1);
  move(shifted.hot_below, 0);
  move(shifted.hot_scale, 0);
  if (!reachable) return std::nullopt;
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
  WithElement(dtype, [&](auto element) {
    LoadMagnitudeBytes<decltype(element)>(changes, before, plan.magnitude_bytes);
  });
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
