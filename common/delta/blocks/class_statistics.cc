#include "common/delta/blocks/class_statistics.h"

#include <algorithm>
#include <bit>
#include <cmath>
#include <limits>
#include <span>
#include <vector>

#include "common/base/check.h"
#include "common/delta/bits/element.h"
#include "common/delta/blocks/hot_magnitudes.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr uint32_t kGroup = 64;   // elements
constexpr uint32_t kStride = 16;  // every kStride-th group is counted

// How often each byte occurs, for at most 2^16 - 1 bytes a turn. Bytes that follow each other are
// often the same; they are counted in turns, so that an increment need not wait for the one before.
class ByteCounts {
 public:
  static constexpr size_t kTurns = 4;

  // `turn`: any number, best counted up.
  void Add(size_t turn, uint8_t byte) { ++counts_[turn % kTurns][byte]; }

  uint32_t Of(size_t byte) const {
    return uint32_t{counts_[0][byte]} + counts_[1][byte] + counts_[2][byte] + counts_[3][byte];
  }

 private:
  std::array<std::array<uint16_t, 256>, kTurns> counts_{};
};

template <typename Element>
void AddBlock(const DecodedBlock& steps, ByteSpan after, ClassStatistics& statistics) {
  using Bits = typename Element::Bits;
  constexpr uint32_t kBits = Element::kBytes * 8;
  const auto bits_at = [&](size_t i) { return LoadLe<Bits>(after.data() + i * Element::kBytes); };
  const size_t count = after.size() / Element::kBytes;
  // A short block is counted whole. In a long one each counted group stands for `stride` groups.
  const size_t stride = count <= size_t{kGroup} * kStride ? 1 : kStride;
  static_assert(limits::kBlockElements / ByteCounts::kTurns < 1 << 16);
  ByteCounts seen;
  for (size_t group = 0; group < count; group += kGroup * stride) {
    const size_t end = std::min<size_t>(count, group + kGroup);
    for (size_t i = group; i < end; ++i) seen.Add(i, MagnitudeByte(bits_at(i)));
  }
  for (size_t i = 0; i < ClassStatistics::kBytes; ++i) {
    statistics.elements[i] += seen.Of(i) * stride;
  }

  DWS_CHECK(steps.positions.size() == steps.values.size());
  // The block has not been read lately, and the counters keep loads from running ahead.
  constexpr size_t kAhead = 32;
  for (size_t i = 0; i < steps.positions.size(); ++i) {
    if (i + kAhead < steps.positions.size()) {
      __builtin_prefetch(after.data() + size_t{steps.positions[i + kAhead]} * Element::kBytes);
    }
    const auto step = static_cast<Bits>(steps.values[i]);
    const Bits old_bits = Element::FromStep(bits_at(steps.positions[i]), static_cast<Bits>(-step));
    const uint8_t byte = MagnitudeByte(old_bits);
    const int64_t signed_step = SignedStep(step, kBits);
    const uint64_t magnitude = signed_step < 0 ? ~static_cast<uint64_t>(signed_step) + 1
                                               : static_cast<uint64_t>(signed_step);
    ++statistics.changes[byte];
    ++statistics.sizes[byte][std::min<size_t>(static_cast<size_t>(std::bit_width(magnitude - 1)),
                                              ClassStatistics::kSizes - 1)];
  }
}

// The least bits that say which k of n elements are marked, when all are equally likely.
double PositionBits(double n, double k) {
  if (k <= 0 || k >= n) return 0;
  const double p = k / n;
  return -(k * std::log2(p) + (n - k) * std::log2(1 - p));
}

// An estimate of the bits of one step in the hot coding; `size` is the bit width of its size.
double HotBits(uint32_t size, uint32_t width) {
  const double quotient =
      size <= width ? 0 : 1.5 * std::exp2(static_cast<double>(size - 1 - width)) - 0.25;
  return width + 1 + std::min(quotient, 24.0);
}

// Sets hot_below and hot_scale to those of least cost. `bytes`: magnitudes of elements that
// changed, ascending.
void ChooseHot(DType dtype, const ClassStatistics& statistics, std::span<const uint8_t> bytes,
               ClassTable& table) {
  // An exception's gap: about one in 20 changes is an exception.
  constexpr double kGapBits = 6;
  constexpr uint32_t kScalesMax = 24;  // candidates, counted down from scale_end
  const uint32_t element_bits = ElementBytes(dtype) * 8;
  const uint32_t byte_max = MagnitudeByteMax(ElementBytes(dtype));
  // Sizes double from each magnitude to the next lower one. The scale is near the highest magnitude
  // that has sizes above 1.
  uint32_t scale_end = 1;
  for (const uint8_t byte : bytes) {
    if (statistics.changes[byte] > statistics.sizes[byte][0]) scale_end = byte + 2U;
  }
  double saved_best = 0;
  for (uint32_t scale = scale_end > kScalesMax ? scale_end - kScalesMax : 1; scale < scale_end;
       ++scale) {
    ClassTable candidate{.hot_scale = static_cast<uint8_t>(std::min(scale, byte_max))};
    double saved = 0;  // bits saved if all magnitudes up to this one are hot
    for (const uint8_t byte : bytes) {
      if (byte == byte_max) break;  // hot_below cannot be above it
      const uint32_t width = HotWidth(candidate, byte, element_bits);
      for (uint32_t size = 0; size < ClassStatistics::kSizes; ++size) {
        const uint32_t count = statistics.sizes[byte][size];
        if (count == 0) continue;
        const double other = size == 0 ? 0 : kGapBits + 1.5 * size;
        saved += count * (other - HotBits(size, width));
      }
      if (saved <= saved_best) continue;
      saved_best = saved;
      table.hot_scale = candidate.hot_scale;
      table.hot_below = static_cast<uint8_t>(byte + 1);
    }
  }
}

// The magnitudes that occur, ascending, with running sums of their elements and changes.
struct Sums {
  std::vector<uint8_t> bytes;
  std::vector<double> elements{0};
  std::vector<double> changes{0};
};

Sums SumUp(const ClassStatistics& statistics) {
  Sums sums;
  for (size_t byte = 0; byte < ClassStatistics::kBytes; ++byte) {
    const auto changed = static_cast<double>(statistics.changes[byte]);
    const double elements = std::max(static_cast<double>(statistics.elements[byte]), changed);
    if (elements == 0) continue;
    sums.bytes.push_back(static_cast<uint8_t>(byte));
    sums.elements.push_back(sums.elements.back() + elements);
    sums.changes.push_back(sums.changes.back() + changed);
  }
  return sums;
}

// Chooses thresholds by dynamic programming: the best way to divide the first `j` magnitudes into
// `c` classes extends the best way to divide the first `i` into `c` - 1.
void ChooseThresholds(const Sums& sums, double class_bits, ClassTable& table) {
  const size_t count = sums.bytes.size();
  DWS_CHECK(count > 0 && sums.elements.size() == count + 1 && sums.changes.size() == count + 1);
  constexpr double kNone = std::numeric_limits<double>::infinity();
  std::vector<double> class_cost((count + 1) * (count + 1));  // of magnitudes i to below j
  for (size_t i = 0; i < count; ++i) {
    for (size_t j = i + 1; j <= count; ++j) {
      class_cost[i * (count + 1) + j] =
          class_bits +
          PositionBits(sums.elements[j] - sums.elements[i], sums.changes[j] - sums.changes[i]);
    }
  }
  std::array<std::vector<double>, kClassesMax + 1> cost;
  std::array<std::vector<size_t>, kClassesMax + 1> from;
  for (size_t c = 0; c <= kClassesMax; ++c) {
    cost[c].assign(count + 1, kNone);
    from[c].assign(count + 1, 0);
  }
  cost[0][0] = 0;
  size_t best = 1;
  for (size_t c = 1; c <= kClassesMax; ++c) {
    for (size_t j = c; j <= count; ++j) {
      for (size_t i = c - 1; i < j; ++i) {
        const double bits = cost[c - 1][i] + class_cost[i * (count + 1) + j];
        if (bits >= cost[c][j]) continue;
        cost[c][j] = bits;
        from[c][j] = i;
      }
    }
    if (cost[c][count] < cost[best][count]) best = c;
  }
  table.threshold_count = static_cast<uint8_t>(best - 1);
  size_t j = count;
  for (size_t c = best; c > 1; --c) {
    j = from[c][j];
    table.thresholds[c - 2] = sums.bytes[j];
  }
}

}  // namespace

void ClassStatistics::Add(DType dtype, const DecodedBlock& steps, ByteSpan after) {
  if (MappingOf(dtype) != Mapping::kFloat) return;
  WithElement(dtype, [&](auto element) { AddBlock<decltype(element)>(steps, after, *this); });
}

std::optional<ClassTable> ChooseClassTable(DType dtype, const ClassStatistics& statistics,
                                           uint64_t blocks) {
  if (MappingOf(dtype) != Mapping::kFloat) return std::nullopt;
  const Sums sums = SumUp(statistics);
  if (sums.changes.back() == 0) return std::nullopt;
  std::vector<uint8_t> changing;
  for (const uint8_t byte : sums.bytes) {
    if (statistics.changes[byte] != 0) changing.push_back(byte);
  }
  constexpr double kHeadBits = 18;  // a class's head, and the loss of a k chosen for fewer ranks
  ClassTable table;
  ChooseThresholds(sums, kHeadBits * static_cast<double>(blocks), table);
  ChooseHot(dtype, statistics, changing, table);
  return table;
}

}  // namespace dws
