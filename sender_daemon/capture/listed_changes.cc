// The lists come from a device, so each entry is compared with the block before it is used.
#include "sender_daemon/capture/listed_changes.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/delta/bits/element.h"

namespace dws {
namespace {

template <typename Element>
std::optional<Digest> Difference(const ListedChanges& changes, ByteSpan block, uint64_t first_word,
                                 ListedWords& words) {
  using Bits = typename Element::Bits;
  DWS_CHECK(changes.positions.size() == changes.count * sizeof(uint16_t));
  DWS_CHECK(changes.before.size() == size_t{changes.count} * Element::kBytes &&
            changes.after.size() == changes.before.size());
  const size_t elements = block.size() / Element::kBytes;
  words.numbers.clear();
  words.before.clear();
  words.after.clear();
  size_t next = 0;  // the smallest valid next position
  for (uint32_t i = 0; i < changes.count; ++i) {
    const size_t position = LoadLe<uint16_t>(changes.positions.data() + i * sizeof(uint16_t));
    const size_t at = position * Element::kBytes;
    if (position < next || position >= elements) return std::nullopt;
    next = position + 1;
    const Bits before = LoadLe<Bits>(changes.before.data() + size_t{i} * Element::kBytes);
    const Bits after = LoadLe<Bits>(changes.after.data() + size_t{i} * Element::kBytes);
    if (LoadLe<Bits>(block.data() + at) != before) return std::nullopt;
    const auto number = static_cast<uint16_t>(at / 8);
    if (words.numbers.empty() || words.numbers.back() != number) {
      uint64_t word = 0;  // zeros after the last element
      std::memcpy(&word, block.data() + at / 8 * 8, std::min<size_t>(8, block.size() - at / 8 * 8));
      words.numbers.push_back(number);
      words.before.push_back(word);
      words.after.push_back(word);
    }
    words.after.back() ^= uint64_t{static_cast<Bits>(before ^ after)} << (at % 8 * 8);
  }
  return DigestDifference({.numbers = words.numbers.data(),
                           .before = words.before.data(),
                           .after = words.after.data(),
                           .count = words.numbers.size()},
                          first_word);
}

}  // namespace

std::optional<Digest> DifferenceOf(DType dtype, const ListedChanges& changes, ByteSpan block,
                                   uint64_t first_word, ListedWords& words) {
  return WithElement(dtype, [&](auto element) {
    return Difference<decltype(element)>(changes, block, first_word, words);
  });
}

void StepsOf(DType dtype, const ListedChanges& changes, BlockChanges& steps) {
  steps.positions.resize(changes.count);
  steps.steps.resize(changes.count);
  WithElement(dtype, [&](auto element) {
    using Bits = typename decltype(element)::Bits;
    for (uint32_t i = 0; i < changes.count; ++i) {
      const Bits before = LoadLe<Bits>(changes.before.data() + size_t{i} * sizeof(Bits));
      const Bits after = LoadLe<Bits>(changes.after.data() + size_t{i} * sizeof(Bits));
      steps.positions[i] = LoadLe<uint16_t>(changes.positions.data() + i * sizeof(uint16_t));
      steps.steps[i] = static_cast<Bits>(element.Ordinal(after) - element.Ordinal(before));
    }
  });
}

void StoreListed(DType dtype, const ListedChanges& changes, MutableByteSpan block) {
  WithElement(dtype, [&](auto element) {
    using Bits = typename decltype(element)::Bits;
    for (uint32_t i = 0; i < changes.count; ++i) {
      const size_t at = LoadLe<uint16_t>(changes.positions.data() + i * sizeof(uint16_t));
      StoreLe(block.data() + at * sizeof(Bits),
              LoadLe<Bits>(changes.after.data() + size_t{i} * sizeof(Bits)));
    }
  });
}

}  // namespace dws
