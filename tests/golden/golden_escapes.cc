// Objects whose steps are too large for unary quotients: valid ones, and the same with an escape
// plane that no encoder writes.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/delta/bits/element.h"
#include "common/delta/bits/escapes.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/dense_ulp.h"
#include "common/delta/blocks/diff.h"
#include "tests/golden/golden_parts.h"

namespace dws::golden {
namespace {

using samples::Bytes;
using samples::State;
using Bf16 = Element<uint16_t, Mapping::kFloat>;

constexpr uint32_t kElements = 1000;
constexpr uint64_t kSeed = 21;

const RankLayout& Layout() {
  static const RankLayout layout = LayoutOf({Tensor("w", DType::kBF16, {kElements})});
  return layout;
}

// Small steps everywhere, and a large one on the first element of magnitude byte 47 and of 55. For
// every shift one of the two is hot and has a narrow remainder.
State LargeSteps(const State& before) {
  State after = before;
  bool large[256] = {};
  for (size_t i = 0; i < kElements; ++i) {
    std::byte* const at = after[0].data() + i * Bf16::kBytes;
    const auto bits = LoadLe<uint16_t>(at);
    const uint8_t magnitude = MagnitudeByte(bits);
    const bool chosen =
        (magnitude == 47 || magnitude == 55) && !std::exchange(large[magnitude], true);
    StoreLe(at, Bf16::FromStep(bits, static_cast<uint16_t>(chosen ? 30'000 : 1 + i % 2)));
  }
  return after;
}

// The object of one block, which may differ from the encoder's.
GoldenCase Case(std::string name, std::string outcome, const EncodedBlock& block) {
  const State before = samples::RandomState(Layout(), kSeed);
  State after = LargeSteps(before);
  samples::Encoding encoding = samples::EncodeState(Layout(), before, after, {});
  encoding.blocks[0] = {block};
  encoding.classes = {kClasses};
  return {.name = std::move(name),
          .layout = Layout(),
          .seed = kSeed,
          .outcome = std::move(outcome),
          .object = samples::SealObject(Layout(), encoding, 4),
          .after = std::move(after)};
}

// Changes the width of the `count` escapes of a plan, and its size in `bits`.
template <typename Coding>
void Widen(Coding& coding, uint64_t count, uint32_t escape_width, uint64_t& bits) {
  bits += count * escape_width - count * coding.escape_width;
  coding.escape_width = escape_width;
}

void AddDenseUlp(const BlockChanges& changes, std::vector<GoldenCase>& cases) {
  DenseUlpPlan plan;
  PlanDenseUlp(DType::kBF16, changes, kElements, plan);
  const uint32_t width = plan.coding.escape_width;
  const auto count = static_cast<uint64_t>(
      std::count_if(plan.values.begin(), plan.values.end(),
                    [&](uint64_t value) { return value >> plan.coding.width >= kQuotientMax; }));
  DWS_CHECK(width > 0 && count > 0);
  const auto write = [&](uint32_t escape_width) {
    Widen(plan.coding, count, escape_width, plan.coding.bits);
    return WriteDenseUlp(plan, kElements);
  };
  cases.push_back(Case("dense_ulp_escape", "OK", write(width)));
  cases.push_back(Case("dense_ulp_escape_wider_than_it_has_to_be", "DATA_LOSS", write(width + 1)));
  cases.push_back(Case("dense_ulp_escape_without_a_width", "DATA_LOSS", write(0)));
}

void AddClassSplit(const BlockChanges& changes, ByteSpan before, std::vector<GoldenCase>& cases) {
  SplitRicePlan split_rice;
  PlanSplitRice(DType::kBF16, changes, split_rice);
  ClassSplitPlan plan;
  PlanClassSplit(DType::kBF16, changes, split_rice, before, kClasses, plan);
  const uint32_t width = plan.hot.escape_width;
  uint64_t count = 0;
  for (size_t i = 0; i < plan.hot.values.size(); ++i) {
    count += plan.hot.values[i] >> plan.hot.widths[i] >= kQuotientMax ? 1 : 0;
  }
  DWS_CHECK(width > 0 && count > 0);
  const auto write = [&](uint32_t escape_width) {
    Widen(plan.hot, count, escape_width, plan.bits);
    return WriteClassSplit(changes, split_rice, plan);
  };
  cases.push_back(Case("class_split_escape", "OK", write(width)));
  cases.push_back(
      Case("class_split_escape_wider_than_it_has_to_be", "DATA_LOSS", write(width + 1)));
  cases.push_back(Case("class_split_escape_without_a_width", "DATA_LOSS", write(0)));
}

}  // namespace

void AddEscapeCases(std::vector<GoldenCase>& cases) {
  const State before = samples::RandomState(Layout(), kSeed);
  BlockChanges changes;
  DiffBlock(DType::kBF16, before[0], LargeSteps(before)[0], 0, changes);
  AddDenseUlp(changes, cases);
  AddClassSplit(changes, before[0], cases);
}

}  // namespace dws::golden
