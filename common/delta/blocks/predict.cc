#include "common/delta/blocks/predict.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/delta/kernels/changed_words.h"

namespace dws {
namespace {

// Elements of one round of prefetching. A round's words must fit the first-level cache; within
// that, the more are fetched at once, the better memory bandwidth is used.
constexpr uint32_t kRound = 512;

using ListChangedWords = uint32_t (*)(const kernels::ElementChanges& changes, std::byte* new_values,
                                      const kernels::WordList& words);

ListChangedWords ChooseKernel() {
#if defined(__x86_64__)
  if (ActiveInstructionSet() == InstructionSet::kAvx512) return kernels::ListChangedWordsAvx512;
#endif
  return kernels::ListChangedWordsPortable;
}

}  // namespace

Digest PredictElements(DType dtype, const DecodedBlock& changes, const ElementPlaces& places,
                       uint64_t first_word, std::byte* new_values, const ElementPlaces& next,
                       PredictScratch& scratch) {
  static const ListChangedWords list_changed_words = ChooseKernel();
  DWS_CHECK(changes.kind == DecodedBlock::Kind::kSteps ||
            changes.kind == DecodedBlock::Kind::kValues);
  const uint32_t count = static_cast<uint32_t>(changes.positions.size());
  DWS_CHECK(changes.values.size() == count && places.offsets.size() == count);
  const uint32_t element_bytes = ElementBytes(dtype);
  const uint32_t word_elements = 8 / element_bytes;
  const uint32_t room = kRound + word_elements + kernels::kWordListSlack;
  scratch.numbers.resize(room);
  scratch.before.resize(room);
  scratch.after.resize(room);
  const kernels::WordList words{.numbers = scratch.numbers.data(),
                                .before = scratch.before.data(),
                                .after = scratch.after.data()};

  // Each round fetches as large a share of `next` as it handles of the elements here.
  const uint64_t fetch_step = (uint64_t{next.offsets.size()} << 16) / std::max(count, 1u) + 1;
  size_t fetched = 0;
  Digest difference;
  for (uint32_t begin = 0; begin < count;) {
    uint32_t end = std::min(begin + kRound, count);
    // No word is divided between two rounds.
    const uint32_t last = changes.positions[end - 1] / word_elements;
    while (end < count && changes.positions[end] / word_elements == last) ++end;
    const size_t fetch_end =
        std::min<size_t>(next.offsets.size(), (uint64_t{end} * fetch_step) >> 16);
    const kernels::ElementChanges round{.memory = places.memory,
                                        .offsets = places.offsets.data() + begin,
                                        .positions = changes.positions.data() + begin,
                                        .values = changes.values.data() + begin,
                                        .count = end - begin,
                                        .element_bytes = element_bytes,
                                        .is_float = MappingOf(dtype) == Mapping::kFloat,
                                        .are_steps = changes.kind == DecodedBlock::Kind::kSteps,
                                        .fetch_memory = next.memory,
                                        .fetch_offsets = next.offsets.data() + fetched,
                                        .fetch_count = static_cast<uint32_t>(fetch_end - fetched)};
    fetched = fetch_end;
    const uint32_t listed =
        list_changed_words(round, new_values + size_t{begin} * element_bytes, words);
    difference += DigestDifference(
        {.numbers = words.numbers, .before = words.before, .after = words.after, .count = listed},
        first_word);
    begin = end;
  }
  return difference;
}

}  // namespace dws
