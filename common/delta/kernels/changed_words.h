// From changed elements to changed words: reads the words around the changed elements of one block,
// computes the elements' new values, and lists the words before and after for the digest. This is
// the inner loop of staging; predict.cc chooses the variant. All variants fill the same lists.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dws::kernels {

// Changed elements, ascending. A word is 8 canonical bytes of the block, numbered from its first
// byte. Each word with a changed element is contiguous in memory, at any alignment.
struct ElementChanges {
  const std::byte* memory = nullptr;
  const uint32_t* offsets = nullptr;    // from `memory` to each element, in bytes
  const uint16_t* positions = nullptr;  // of each in the block
  const uint64_t* values = nullptr;     // steps of ordinals, or new values
  uint32_t count = 0;
  uint32_t element_bytes = 1;  // 1, 2, 4 or 8
  bool is_float = false;       // the mapping to ordinals
  bool are_steps = true;
  // Memory that a later call reads. This call prefetches it to the second-level cache, so that the
  // transfers overlap with its arithmetic.
  const std::byte* fetch_memory = nullptr;
  const uint32_t* fetch_offsets = nullptr;
  uint32_t fetch_count = 0;
};

// Words with a changed element: parallel arrays with room for as many entries as there are
// elements, and for kWordListSlack more, which are overwritten.
struct WordList {
  uint16_t* numbers = nullptr;
  uint64_t* before = nullptr;
  uint64_t* after = nullptr;
};
inline constexpr uint32_t kWordListSlack = 8;

// Stores new values packed at `new_values` (count * element_bytes bytes) and returns the length of
// the list.
uint32_t ListChangedWordsPortable(const ElementChanges& changes, std::byte* new_values,
                                  const WordList& words);
// Like the portable variant, eight elements at a time.
uint32_t ListChangedWordsAvx512(const ElementChanges& changes, std::byte* new_values,
                                const WordList& words);

}  // namespace dws::kernels
