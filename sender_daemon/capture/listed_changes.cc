// The lists come from a device, so each entry is compared with the block before it is used.
#include "sender_daemon/capture/listed_changes.h"

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/delta/bits/element.h"

namespace dws {
namespace {

// No word of a block has this number.
constexpr uint32_t kNoWord = ~uint32_t{0};

// How many changes ahead their bytes of the snapshot are fetched: on a large model each is a cache
// miss, and the positions are known.
constexpr uint32_t kAhead = 64;

uint16_t PositionOf(const ListedChanges& changes, uint32_t index) {
  return LoadLe<uint16_t>(changes.positions.data() + size_t{index} * sizeof(uint16_t));
}

// The address of the bytes of change `index`, to be prefetched; positions may be nonsense.
const std::byte* Ahead(const ListedChanges& changes, uint32_t index, size_t element_bytes,
                       ByteSpan block) {
  const uint32_t within = std::min(index, changes.count - 1);
  return block.data() + PositionOf(changes, within) * element_bytes;
}

template <typename Element>
std::optional<Digest> Difference(const ListedChanges& changes, ByteSpan block, uint64_t first_word,
                                 ListedWords& words) {
  using Bits = typename Element::Bits;
  DWS_CHECK(changes.positions.size() == changes.count * sizeof(uint16_t));
  DWS_CHECK(changes.before.size() == size_t{changes.count} * Element::kBytes &&
            changes.after.size() == changes.before.size());
  const size_t elements = block.size() / Element::kBytes;
  const size_t whole_words = block.size() / 8;
  words.Reserve(changes.count);
  size_t count = 0;  // words
  size_t next = 0;   // the smallest valid next position
  uint32_t last = kNoWord;
  for (uint32_t i = 0; i < changes.count; ++i) {
    // Not in a separate function: gcc treats a function that only prefetches as one that does
    // nothing.
    __builtin_prefetch(Ahead(changes, i + kAhead, Element::kBytes, block));
    const size_t position = PositionOf(changes, i);
    const size_t at = position * Element::kBytes;
    if (position < next || position >= elements) return std::nullopt;
    next = position + 1;
    const Bits before = LoadLe<Bits>(changes.before.data() + size_t{i} * Element::kBytes);
    const Bits after = LoadLe<Bits>(changes.after.data() + size_t{i} * Element::kBytes);
    const auto number = static_cast<uint32_t>(at / 8);
    if (number != last) {
      uint64_t word = 0;  // zeros after the last element
      if (number < whole_words) {
        word = LoadLe<uint64_t>(block.data() + size_t{number} * 8);
      } else {
        std::memcpy(&word, block.data() + size_t{number} * 8, block.size() % 8);
      }
      words.numbers[count] = static_cast<uint16_t>(number);
      words.before[count] = words.after[count] = word;
      ++count;
      last = number;
    }
    if (static_cast<Bits>(words.before[count - 1] >> (at % 8 * 8)) != before || before == after) {
      return std::nullopt;
    }
    words.after[count - 1] ^= uint64_t{static_cast<Bits>(before ^ after)} << (at % 8 * 8);
  }
  return DigestDifference({.numbers = words.numbers.data(),
                           .before = words.before.data(),
                           .after = words.after.data(),
                           .count = count},
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
      steps.positions[i] = PositionOf(changes, i);
      steps.steps[i] = static_cast<Bits>(element.Ordinal(after) - element.Ordinal(before));
    }
  });
}

void StoreListed(DType dtype, const ListedChanges& changes, MutableByteSpan block) {
  WithElement(dtype, [&](auto element) {
    using Bits = typename decltype(element)::Bits;
    for (uint32_t i = 0; i < changes.count; ++i) {
      __builtin_prefetch(Ahead(changes, i + kAhead, sizeof(Bits), block), 1);
      StoreLe(block.data() + PositionOf(changes, i) * sizeof(Bits),
              LoadLe<Bits>(changes.after.data() + size_t{i} * sizeof(Bits)));
    }
  });
}

}  // namespace dws
