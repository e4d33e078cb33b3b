#include <algorithm>
#include <bit>
#include <cstring>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/delta/element.h"
#include "common/delta/kernels/class_scan.h"

namespace dws::kernels {
namespace {

using ClassOfByte = std::array<uint8_t, 256>;

ClassOfByte Classes(const ClassTable& table) {
  ClassOfByte classes{};
  for (size_t i = 0; i < table.threshold_count; ++i) {
    for (size_t byte = table.thresholds[i]; byte < 256; ++byte) ++classes[byte];
  }
  return classes;
}

// Calls visit(position, class) for each element.
template <typename Bits, typename Visit>
void ForEachElement(const ClassScanInput& input, const ClassOfByte& classes, Visit visit) {
  for (uint32_t i = 0; i < input.count; ++i) {
    const Bits bits = LoadLe<Bits>(input.elements + size_t{i} * sizeof(Bits));
    visit(i, classes[MagnitudeByte(bits)]);
  }
}

template <typename Visit>
void ForEachElement(const ClassScanInput& input, Visit visit) {
  const ClassOfByte classes = Classes(*input.classes);
  switch (input.element_bytes) {
    case 1:
      return ForEachElement<uint8_t>(input, classes, visit);
    case 2:
      return ForEachElement<uint16_t>(input, classes, visit);
    case 4:
      return ForEachElement<uint32_t>(input, classes, visit);
    default:
      break;
  }
  DWS_CHECK(input.element_bytes == 8);
  ForEachElement<uint64_t>(input, classes, visit);
}

void SplitPortable(const ClassScanInput& input, const BlockMask& mask, ClassMarks& marks) {
  marks.sizes.fill(0);
  ForEachElement(input, [&](uint32_t position, uint8_t c) {
    const uint32_t rank = marks.sizes[c]++;
    uint64_t& word = marks.words[c][rank / 64];
    const uint64_t marked = mask[position / 64] >> (position % 64) & 1;
    word = rank % 64 == 0 ? marked : word | marked << (rank % 64);
  });
}

void MergePortable(const ClassScanInput& input, ClassMarks& marks, BlockMask& mask) {
  marks.sizes.fill(0);
  std::fill_n(mask.begin(), CeilDiv(input.count, 64), 0);
  ForEachElement(input, [&](uint32_t position, uint8_t c) {
    const uint32_t rank = marks.sizes[c]++;
    mask[position / 64] |= (marks.words[c][rank / 64] >> (rank % 64) & 1) << (position % 64);
  });
}

// `flip` is all ones to list what is not marked, else 0.
uint32_t ListMarksPortable(const uint64_t* words, uint32_t size, uint64_t flip, uint16_t* numbers) {
  uint32_t found = 0;
  for (uint32_t base = 0; base < size; base += 64) {
    uint64_t word = words[base / 64] ^ flip;
    if (size - base < 64) word &= LowBits(size - base);
    for (; word != 0; word &= word - 1) {
      numbers[found++] =
          static_cast<uint16_t>(base + static_cast<uint32_t>(std::countr_zero(word)));
    }
  }
  return found;
}

}  // namespace

uint32_t ListMarks(InstructionSet set, const uint64_t* words, uint32_t size, bool marked,
                   uint16_t* numbers) {
  const uint64_t flip = marked ? 0 : ~uint64_t{0};
  return set == InstructionSet::kAvx512 ? internal::ListMarksAvx512(words, size, flip, numbers)
                                        : ListMarksPortable(words, size, flip, numbers);
}

void SplitByClass(InstructionSet set, const ClassScanInput& input, const BlockMask& mask,
                  ClassMarks& marks) {
  DWS_CHECK(input.count <= limits::kBlockElements);
  if (set == InstructionSet::kAvx512 && internal::SplitByClassAvx512(input, mask, marks)) return;
  if (set != InstructionSet::kPortable && internal::SplitByClassAvx2(input, mask, marks)) return;
  SplitPortable(input, mask, marks);
}

void MergeClasses(InstructionSet set, const ClassScanInput& input, ClassMarks& marks,
                  BlockMask& mask) {
  DWS_CHECK(input.count <= limits::kBlockElements);
  if (set == InstructionSet::kAvx512 && internal::MergeClassesAvx512(input, marks, mask)) return;
  if (set != InstructionSet::kPortable && internal::MergeClassesAvx2(input, marks, mask)) return;
  MergePortable(input, marks, mask);
}

}  // namespace dws::kernels
