#include <algorithm>
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

}  // namespace

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
