#include "common/delta/blocks/diff.h"

#include <algorithm>
#include <cstring>
#include <span>
#include <type_traits>
#include <vector>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/delta/bits/element.h"
#include "common/delta/kernels/diff_lines.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Room for a block of the widest elements.
constexpr size_t kRoom = limits::kBlockElements + kernels::DiffArrays::kSlack;

// From one change in so many elements on, AddSteps goes over the whole block: 16 bytes at a time
// that takes less than a load and a store that depends on it for each change.
constexpr size_t kSparse = 16;
constexpr size_t kVectorBytes = 16;

// FromStep in all lanes: `Lanes` has unsigned ones, and `SignedLanes` as many signed ones.
template <typename Element, typename Lanes, typename SignedLanes>
Lanes FromSteps(Lanes elements, Lanes steps) {
  const auto ordinal = [](Lanes of) {
    if constexpr (Element::kMapping == Mapping::kInteger) return of;
    constexpr int kSignShift = Element::kBytes * 8 - 1;
    constexpr auto kMagnitude = static_cast<typename Element::Bits>(LowBits(kSignShift));
    return of ^
           (reinterpret_cast<Lanes>(reinterpret_cast<SignedLanes>(of) >> kSignShift) & kMagnitude);
  };
  return ordinal(ordinal(elements) + steps);
}

// Adds to every element its step, or 0.
template <typename Element>
void AddToAll(std::span<const typename Element::Bits> steps, std::byte* block) {
  using Bits = typename Element::Bits;
  using Lanes [[gnu::vector_size(kVectorBytes)]] = Bits;
  using SignedLanes [[gnu::vector_size(kVectorBytes)]] = std::make_signed_t<Bits>;
  constexpr size_t kLanes = kVectorBytes / Element::kBytes;
  size_t i = 0;
  for (; i + kLanes <= steps.size(); i += kLanes) {
    Lanes elements;
    Lanes added;
    std::memcpy(&elements, block + i * Element::kBytes, kVectorBytes);
    std::memcpy(&added, steps.data() + i, kVectorBytes);
    elements = FromSteps<Element, Lanes, SignedLanes>(elements, added);
    std::memcpy(block + i * Element::kBytes, &elements, kVectorBytes);
  }
  for (; i < steps.size(); ++i) {
    std::byte* const at = block + i * Element::kBytes;
    StoreLe(at, Element::FromStep(LoadLe<Bits>(at), steps[i]));
  }
}

// Adds each step to its element. `sign` is 1, or all ones to undo the steps.
template <typename Element>
void AddSteps(const DecodedBlock& decoded, uint64_t sign, MutableByteSpan block) {
  using Bits = typename Element::Bits;
  const size_t elements = block.size() / Element::kBytes;
  const std::span<const uint16_t> positions = decoded.positions;
  const std::span<const uint64_t> steps = decoded.values;
  DWS_CHECK(positions.size() == steps.size());
  DWS_CHECK(positions.empty() || positions.back() < elements);
  if (positions.size() >= elements / kSparse) {
    std::vector<Bits> of_all(elements);
    for (size_t i = 0; i < positions.size(); ++i) {
      of_all[positions[i]] = static_cast<Bits>(steps[i] * sign);
    }
    return AddToAll<Element>(of_all, block.data());
  }
  for (size_t i = 0; i < positions.size(); ++i) {
    std::byte* at = block.data() + size_t{positions[i]} * Element::kBytes;
    StoreLe(at, Element::FromStep(LoadLe<Bits>(at), static_cast<Bits>(steps[i] * sign)));
  }
}

template <typename Element>
void StoreValues(const DecodedBlock& decoded, MutableByteSpan block) {
  DWS_CHECK(decoded.positions.size() == decoded.values.size());
  for (size_t i = 0; i < decoded.positions.size(); ++i) {
    StoreLe(block.data() + size_t{decoded.positions[i]} * Element::kBytes,
            static_cast<typename Element::Bits>(decoded.values[i]));
  }
}

}  // namespace

BlockDiffer::BlockDiffer()
    : positions_(std::make_unique_for_overwrite<uint16_t[]>(kRoom)),
      steps_(std::make_unique_for_overwrite<uint64_t[]>(kRoom)),
      words_(std::make_unique_for_overwrite<uint16_t[]>(kRoom)),
      words_before_(std::make_unique_for_overwrite<uint64_t[]>(kRoom)),
      words_after_(std::make_unique_for_overwrite<uint64_t[]>(kRoom)) {}

Digest BlockDiffer::Diff(DType dtype, ByteSpan before, ByteSpan after, uint64_t first_word,
                         BlockChanges& changes) {
  const kernels::ElementKind kind{.bytes = ElementBytes(dtype), .mapping = MappingOf(dtype)};
  DWS_CHECK(before.size() == after.size() && before.size() % kind.bytes == 0);
  DWS_CHECK(before.size() <= uint64_t{limits::kBlockElements} * kind.bytes);
  kernels::DiffArrays found{.positions = positions_.get(),
                            .steps = steps_.get(),
                            .words = words_.get(),
                            .words_before = words_before_.get(),
                            .words_after = words_after_.get()};
  const uint32_t lines = static_cast<uint32_t>(before.size() / kernels::kLineBytes);
  const InstructionSet set = ActiveInstructionSet();
  kernels::DiffLines(set, kind,
                     {.before = before.data(), .after = after.data(), .first = 0, .count = lines},
                     found);
  if (const size_t tail = before.size() % kernels::kLineBytes; tail != 0) {
    // Both lines are padded with zeros, which do not differ.
    std::byte old_line[kernels::kLineBytes] = {};
    std::byte new_line[kernels::kLineBytes] = {};
    std::memcpy(old_line, before.data() + before.size() - tail, tail);
    std::memcpy(new_line, after.data() + after.size() - tail, tail);
    kernels::DiffLines(set, kind,
                       {.before = old_line, .after = new_line, .first = lines, .count = 1}, found);
  }
  DWS_CHECK(found.element_count <= limits::kBlockElements && found.word_count <= kRoom);
  word_count_ = found.word_count;
  changes.positions.assign(positions_.get(), positions_.get() + found.element_count);
  changes.steps.assign(steps_.get(), steps_.get() + found.element_count);
  return DigestDifference({.numbers = words_.get(),
                           .before = words_before_.get(),
                           .after = words_after_.get(),
                           .count = word_count_},
                          first_word);
}

void BlockDiffer::Update(MutableByteSpan block) const {
  const uint64_t whole = block.size() / 8;
  uint32_t count = word_count_;
  DWS_CHECK(count == 0 || uint64_t{words_[count - 1]} * 8 < block.size());
  if (count != 0 && words_[count - 1] == whole) {  // the last word extends beyond the block
    --count;
    std::memcpy(block.data() + whole * 8, &words_after_[count], block.size() % 8);
  }
  if (count == whole) {
    std::memcpy(block.data(), words_after_.get(), whole * 8);
    return;
  }
  for (uint32_t i = 0; i < count; ++i) {
    StoreLe(block.data() + size_t{words_[i]} * 8, words_after_[i]);
  }
}

Digest DiffBlock(DType dtype, ByteSpan before, ByteSpan after, uint64_t first_word,
                 BlockChanges& changes) {
  return BlockDiffer().Diff(dtype, before, after, first_word, changes);
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
  DWS_CHECK(first.positions.size() == first.steps.size());
  DWS_CHECK(second.positions.size() == second.steps.size());
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
