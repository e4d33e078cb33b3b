#include "common/delta/diff.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/delta/element.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// A chunk's results stay in the first-level cache until they are appended.
constexpr uint32_t kChunkWords = 256;
constexpr uint32_t kGroupWords = 8;  // one cache line is compared at once

// Numbers of the words that differ, ascending. `changed` has room for `count`.
uint32_t ChangedWords(const std::byte* before, const std::byte* after, uint32_t count,
                      uint16_t* changed) {
  uint32_t found = 0;
  uint32_t i = 0;
  for (; i + kGroupWords <= count; i += kGroupWords) {
    uint64_t difference[kGroupWords];
    uint64_t any = 0;
    for (uint32_t j = 0; j < kGroupWords; ++j) {
      difference[j] = LoadLe<uint64_t>(before + size_t{i + j} * 8) ^
                      LoadLe<uint64_t>(after + size_t{i + j} * 8);
      any |= difference[j];
    }
    if (any == 0) continue;
    for (uint32_t j = 0; j < kGroupWords; ++j) {
      changed[found] = static_cast<uint16_t>(i + j);
      found += difference[j] != 0 ? 1 : 0;
    }
  }
  for (; i < count; ++i) {
    changed[found] = static_cast<uint16_t>(i);
    found +=
        LoadLe<uint64_t>(before + size_t{i} * 8) != LoadLe<uint64_t>(after + size_t{i} * 8) ? 1 : 0;
  }
  return found;
}

// Room for the changes of one chunk.
template <typename Element>
struct Chunk {
  uint16_t positions[kChunkWords * Element::kLanes];
  uint64_t steps[kChunkWords * Element::kLanes];
  uint32_t size = 0;

  // The changed elements of one word, whose first is element number `first`. Without a branch:
  // which of a word's elements changed is not predictable.
  void Add(uint64_t before, uint64_t after, uint32_t first) {
    using Bits = typename Element::Bits;
    for (uint32_t lane = 0; lane < Element::kLanes; ++lane) {
      const Bits old_bits = static_cast<Bits>(before >> (lane * Element::kBytes * 8));
      const Bits new_bits = static_cast<Bits>(after >> (lane * Element::kBytes * 8));
      positions[size] = static_cast<uint16_t>(first + lane);
      steps[size] = static_cast<Bits>(Element::Ordinal(new_bits) - Element::Ordinal(old_bits));
      size += old_bits != new_bits ? 1 : 0;
    }
  }
  void AppendTo(BlockChanges& changes) {
    changes.positions.insert(changes.positions.end(), positions, positions + size);
    changes.steps.insert(changes.steps.end(), steps, steps + size);
    size = 0;
  }
};

template <typename Element>
Digest DiffElements(ByteSpan before, ByteSpan after, uint64_t first_word, BlockChanges& changes) {
  const uint32_t words = static_cast<uint32_t>(before.size() / 8);
  Digest difference;
  Chunk<Element> chunk;
  const auto add_word = [&](uint32_t word, uint64_t old_word, uint64_t new_word) {
    difference += MixWord(first_word + word, new_word) - MixWord(first_word + word, old_word);
    chunk.Add(old_word, new_word, word * Element::kLanes);
  };
  uint16_t changed[kChunkWords];
  for (uint32_t begin = 0; begin < words; begin += kChunkWords) {
    const std::byte* old_words = before.data() + size_t{begin} * 8;
    const std::byte* new_words = after.data() + size_t{begin} * 8;
    const uint32_t found =
        ChangedWords(old_words, new_words, std::min(kChunkWords, words - begin), changed);
    if (found == 0) continue;
    for (uint32_t i = 0; i < found; ++i) {
      add_word(begin + changed[i], LoadLe<uint64_t>(old_words + size_t{changed[i]} * 8),
               LoadLe<uint64_t>(new_words + size_t{changed[i]} * 8));
    }
    chunk.AppendTo(changes);
  }
  if (const size_t tail = before.size() % 8; tail != 0) {
    uint64_t old_word = 0;
    uint64_t new_word = 0;
    std::memcpy(&old_word, before.data() + size_t{words} * 8, tail);
    std::memcpy(&new_word, after.data() + size_t{words} * 8, tail);
    if (old_word != new_word) {
      add_word(words, old_word, new_word);
      chunk.AppendTo(changes);
    }
  }
  return difference;
}

// Adds each step to its element; `sign` is 1, or all ones to take the steps back.
template <typename Element>
void AddSteps(const DecodedBlock& decoded, uint64_t sign, MutableByteSpan block) {
  using Bits = typename Element::Bits;
  for (size_t i = 0; i < decoded.positions.size(); ++i) {
    std::byte* at = block.data() + size_t{decoded.positions[i]} * Element::kBytes;
    StoreLe(at, Element::FromStep(LoadLe<Bits>(at), static_cast<Bits>(decoded.values[i] * sign)));
  }
}

template <typename Element>
void StoreValues(const DecodedBlock& decoded, MutableByteSpan block) {
  for (size_t i = 0; i < decoded.positions.size(); ++i) {
    StoreLe(block.data() + size_t{decoded.positions[i]} * Element::kBytes,
            static_cast<typename Element::Bits>(decoded.values[i]));
  }
}

}  // namespace

Digest DiffBlock(DType dtype, ByteSpan before, ByteSpan after, uint64_t first_word,
                 BlockChanges& changes) {
  const uint32_t element_bytes = ElementBytes(dtype);
  DWS_CHECK(before.size() == after.size() && before.size() % element_bytes == 0);
  DWS_CHECK(before.size() <= uint64_t{limits::kBlockElements} * element_bytes);
  changes.clear();
  return WithElement(dtype, [&](auto element) {
    return DiffElements<decltype(element)>(before, after, first_word, changes);
  });
}

void ApplyBlock(DType dtype, const DecodedBlock& decoded, MutableByteSpan block) {
  switch (decoded.kind) {
    case DecodedBlock::Kind::kNothing:
      return;
    case DecodedBlock::Kind::kSteps:
      return WithElement(dtype,
                         [&](auto element) { AddSteps<decltype(element)>(decoded, 1, block); });
    case DecodedBlock::Kind::kValues:
      return WithElement(dtype,
                         [&](auto element) { StoreValues<decltype(element)>(decoded, block); });
    case DecodedBlock::Kind::kDense:
      DWS_CHECK(decoded.dense.size() == block.size());
      std::copy(decoded.dense.begin(), decoded.dense.end(), block.begin());
      return;
  }
}

void UndoBlock(DType dtype, const DecodedBlock& decoded, MutableByteSpan block) {
  if (decoded.kind == DecodedBlock::Kind::kNothing) return;
  DWS_CHECK(decoded.kind == DecodedBlock::Kind::kSteps);
  WithElement(dtype,
              [&](auto element) { AddSteps<decltype(element)>(decoded, ~uint64_t{0}, block); });
}

BlockChanges ComposeSteps(DType dtype, const BlockChanges& first, const BlockChanges& second) {
  const uint64_t mask = LowBits(ElementBytes(dtype) * 8);
  BlockChanges sum;
  sum.positions.reserve(first.size() + second.size());
  sum.steps.reserve(first.size() + second.size());
  const auto add = [&sum](uint16_t position, uint64_t step) {
    if (step == 0) return;
    sum.positions.push_back(position);
    sum.steps.push_back(step);
  };
  size_t i = 0;
  size_t j = 0;
  while (i < first.size() && j < second.size()) {
    if (first.positions[i] < second.positions[j]) {
      add(first.positions[i], first.steps[i]);
      ++i;
    } else if (first.positions[i] > second.positions[j]) {
      add(second.positions[j], second.steps[j]);
      ++j;
    } else {
      add(first.positions[i], (first.steps[i] + second.steps[j]) & mask);
      ++i;
      ++j;
    }
  }
  for (; i < first.size(); ++i) add(first.positions[i], first.steps[i]);
  for (; j < second.size(); ++j) add(second.positions[j], second.steps[j]);
  return sum;
}

}  // namespace dws
