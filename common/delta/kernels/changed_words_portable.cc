#include <type_traits>

#include "common/base/bytes.h"
#include "common/delta/bits/element.h"
#include "common/delta/kernels/changed_words.h"

namespace dws::kernels {
namespace {

// A word is listed at its first changed element. Each changed element then flips its bits in the
// listed word.
template <typename Element, bool kSteps>
uint32_t ListWords(const ElementChanges& changes, std::byte* new_values, const WordList& words) {
  using Bits = typename Element::Bits;
  uint32_t listed = 0;
  uint32_t last = ~uint32_t{0};
  for (uint32_t i = 0; i < changes.fetch_count; ++i) {
    __builtin_prefetch(changes.fetch_memory + changes.fetch_offsets[i], 0, 2);
  }
  for (uint32_t i = 0; i < changes.count; ++i) {
    const uint32_t number = changes.positions[i] / Element::kLanes;
    const uint32_t in_word = changes.positions[i] % Element::kLanes * Element::kBytes;
    if (number != last) {
      const uint64_t word = LoadLe<uint64_t>(changes.memory + changes.offsets[i] - in_word);
      words.numbers[listed] = static_cast<uint16_t>(number);
      words.before[listed] = word;
      words.after[listed] = word;
      ++listed;
      last = number;
    }
    const Bits old_bits = static_cast<Bits>(words.before[listed - 1] >> (in_word * 8));
    const Bits value = static_cast<Bits>(changes.values[i]);
    const Bits new_bits = kSteps ? Element::FromStep(old_bits, value) : value;
    words.after[listed - 1] ^= static_cast<uint64_t>(static_cast<Bits>(old_bits ^ new_bits))
                               << (in_word * 8);
    StoreLe(new_values + size_t{i} * Element::kBytes, new_bits);
  }
  return listed;
}

template <typename Bits>
uint32_t ListWordsOf(const ElementChanges& changes, std::byte* new_values, const WordList& words) {
  using Float = Element<Bits, Mapping::kFloat>;
  using Integer = Element<Bits, Mapping::kInteger>;
  if (!changes.are_steps) return ListWords<Integer, false>(changes, new_values, words);
  return changes.is_float ? ListWords<Float, true>(changes, new_values, words)
                          : ListWords<Integer, true>(changes, new_values, words);
}

}  // namespace

uint32_t ListChangedWordsPortable(const ElementChanges& changes, std::byte* new_values,
                                  const WordList& words) {
  switch (changes.element_bytes) {
    case 1:
      return ListWordsOf<uint8_t>(changes, new_values, words);
    case 2:
      return ListWordsOf<uint16_t>(changes, new_values, words);
    case 4:
      return ListWordsOf<uint32_t>(changes, new_values, words);
    default:
      return ListWordsOf<uint64_t>(changes, new_values, words);
  }
}

}  // namespace dws::kernels
