#include <algorithm>
#include <bit>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/delta/bits/element.h"
#include "common/delta/kernels/class_index.h"

namespace dws::kernels {
namespace {

using ClassOfByte = std::array<uint8_t, 256>;

ClassOfByte Classes(const ClassTable& table) {
  ClassOfByte classes{};
  for (size_t byte = 0; byte < classes.size(); ++byte) {
    classes[byte] = static_cast<uint8_t>(ClassOf(table, static_cast<uint8_t>(byte)));
  }
  return classes;
}

template <typename Bits>
void IndexPortable(const ClassIndexInput& input, ClassIndex& index) {
  const ClassOfByte classes = Classes(*input.classes);
  const size_t class_count = input.classes->class_count();
  for (uint32_t begin = 0; begin < input.count; begin += 64) {
    for (size_t c = 0; c < class_count; ++c) {
      index.members[begin / 64][c] = 0;
      index.ranks[c][begin / 64] = static_cast<uint16_t>(index.sizes[c]);
    }
    for (uint32_t i = begin; i < std::min(begin + 64, input.count); ++i) {
      const Bits bits = LoadLe<Bits>(input.elements + size_t{i} * sizeof(Bits));
      const uint8_t c = classes[MagnitudeByte(bits)];
      index.members[begin / 64][c] |= uint64_t{1} << (i % 64);
      ++index.sizes[c];
    }
  }
}

void IndexPortable(const ClassIndexInput& input, ClassIndex& index) {
  switch (input.element_bytes) {
    case 1:
      return IndexPortable<uint8_t>(input, index);
    case 2:
      return IndexPortable<uint16_t>(input, index);
    case 4:
      return IndexPortable<uint32_t>(input, index);
    default:
      break;
  }
  DWS_CHECK(input.element_bytes == 8);
  IndexPortable<uint64_t>(input, index);
}

void RankElementsPortable(const ClassIndex& index, const uint16_t* positions,
                          const uint8_t* classes, uint32_t count, uint16_t* ranks) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint32_t group = positions[i] / 64;
    const uint64_t before = index.members[group][classes[i]] & LowBits(positions[i] % 64);
    ranks[i] = static_cast<uint16_t>(index.ranks[classes[i]][group] + std::popcount(before));
  }
}

void SortByClassPortable(const uint8_t* classes, const uint16_t* numbers, uint32_t count,
                         uint32_t stride, uint16_t* sorted, uint32_t* sizes) {
  for (uint32_t i = 0; i < count; ++i) {
    const uint8_t c = classes[i];
    sorted[size_t{c} * stride + sizes[c]++] = numbers[i];
  }
}

void FlipRanksPortable(const ClassIndex& index, size_t c, const uint16_t* ranks, uint32_t count,
                       uint64_t* mask, FetchAhead& ahead) {
  FetchAhead left = ahead;  // a copy that stays in registers
  uint32_t group = 0;
  for (uint32_t i = 0; i < count; ++i) {
    left.Fetch(kLinesARank);
    while (group + 1 < index.group_count && index.ranks[c][group + 1] <= ranks[i]) ++group;
    uint64_t members = index.members[group][c];
    for (uint32_t skip = ranks[i] - index.ranks[c][group]; skip > 0; --skip) members &= members - 1;
    mask[group] ^= members & (0 - members);
  }
  ahead = left;
}

uint32_t ListOnesPortable(const uint64_t* words, uint32_t size, uint16_t* numbers) {
  uint32_t found = 0;
  for (uint32_t base = 0; base < size; base += 64) {
    uint64_t word = words[base / 64];
    if (size - base < 64) word &= LowBits(size - base);
    for (; word != 0; word &= word - 1) {
      numbers[found++] =
          static_cast<uint16_t>(base + static_cast<uint32_t>(std::countr_zero(word)));
    }
  }
  return found;
}

// Fills input.marked from the members.
void Mark(const ClassIndexInput& input, const ClassIndex& index) {
  std::fill_n(input.marked, index.group_count, 0);
  for (size_t c = 0; c < input.classes->class_count(); ++c) {
    if ((input.marked_classes >> c & 1) == 0) continue;
    for (uint32_t i = 0; i < index.group_count; ++i) input.marked[i] |= index.members[i][c];
  }
}

// Returns whether internal:: has variants for this width; otherwise the portable variant is used.
bool HasVariant(const ClassIndexInput& input) { return input.element_bytes <= 2; }

// Fills all but the ranks after the last group. The variant for AVX-512 marks on the way.
void IndexMembers(InstructionSet set, const ClassIndexInput& input, ClassIndex& index) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512 && HasVariant(input)) {
    return internal::IndexClassesAvx512(input, index);
  }
  if (set == InstructionSet::kAvx2 && HasVariant(input)) {
    internal::IndexClassesAvx2(input, index);
  } else {
    IndexPortable(input, index);
  }
#else
  IndexPortable(input, index);
#endif
  if (input.marked != nullptr) Mark(input, index);
}

}  // namespace

void IndexClasses(InstructionSet set, const ClassIndexInput& input, ClassIndex& index) {
  DWS_CHECK(input.count <= limits::kBlockElements);
  index.sizes.fill(0);
  index.group_count = static_cast<uint32_t>(CeilDiv(input.count, 64));
  IndexMembers(set, input, index);
  for (std::array<uint16_t, kMaskWords>& ranks : index.ranks) {
    std::fill(ranks.begin() + index.group_count, ranks.end(), uint16_t{0xFFFF});
  }
}

void RankElements(InstructionSet set, const ClassIndex& index, const uint16_t* positions,
                  const uint8_t* classes, uint32_t count, uint16_t* ranks) {
#if defined(__x86_64__)
  if (set != InstructionSet::kPortable) {
    return internal::RankElementsAvx2(index, positions, classes, count, ranks);
  }
#endif
  RankElementsPortable(index, positions, classes, count, ranks);
}

void SortByClass(InstructionSet set, const uint8_t* classes, const uint16_t* numbers,
                 uint32_t count, size_t class_count, uint32_t stride, uint16_t* sorted,
                 uint32_t* sizes) {
  DWS_CHECK(stride >= count + kNumbersSlack);
  std::fill_n(sizes, class_count, 0);
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) {
    return internal::SortByClassAvx512(classes, numbers, count, class_count, stride, sorted, sizes);
  }
#endif
  SortByClassPortable(classes, numbers, count, stride, sorted, sizes);
}

void FlipRanks(InstructionSet set, const ClassIndex& index, size_t c, const uint16_t* ranks,
               uint32_t count, uint64_t* mask, FetchAhead& ahead) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) {
    return internal::FlipRanksAvx512(index, c, ranks, count, mask, ahead);
  }
#endif
  FlipRanksPortable(index, c, ranks, count, mask, ahead);
}

uint32_t ListOnes(InstructionSet set, const uint64_t* words, uint32_t size, uint16_t* numbers) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return internal::ListOnesAvx512(words, size, numbers);
#endif
  return ListOnesPortable(words, size, numbers);
}

}  // namespace dws::kernels
