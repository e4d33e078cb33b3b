#include "tools/bench/measure/entropy.h"

#include <array>
#include <cmath>
#include <map>

#include "common/delta/bits/element.h"

namespace dws::bench {
namespace {

// -k*log2(k/n), 0 for none.
double Bits(uint64_t k, uint64_t n) {
  if (k == 0) return 0;
  return static_cast<double>(k) * std::log2(static_cast<double>(n) / static_cast<double>(k));
}

struct MagnitudeClass {
  uint64_t elements = 0;
  uint64_t changed = 0;
  std::map<uint64_t, uint64_t> steps;  // and how often
};

// Returns the magnitude byte of a float of `width` bits: exponent bits first.
size_t MagnitudeByte(uint64_t bits, uint32_t width) {
  return width == 8 ? bits & 0x7F : bits >> (width - 9) & 0xFF;
}

template <typename Element>
double TensorBits(const TensorPair& tensor, bool is_float) {
  using Word = typename Element::Bits;
  constexpr uint32_t kWidth = 8 * sizeof(Word);
  std::array<MagnitudeClass, 256> classes;
  for (size_t at = 0; at < tensor.before.size(); at += sizeof(Word)) {
    const auto before = LoadLe<Word>(tensor.before.data() + at);
    const auto after = LoadLe<Word>(tensor.after.data() + at);
    MagnitudeClass& group = classes[is_float ? MagnitudeByte(before, kWidth) : 0];
    ++group.elements;
    if (before == after) continue;
    ++group.changed;
    ++group.steps[static_cast<Word>(Element::Ordinal(after) - Element::Ordinal(before))];
  }
  double bits = 0;
  for (const MagnitudeClass& group : classes) {
    bits +=
        Bits(group.changed, group.elements) + Bits(group.elements - group.changed, group.elements);
    for (const auto& [step, count] : group.steps) bits += Bits(count, group.changed);
  }
  return bits;
}

}  // namespace

double ClassEntropyBits(std::span<const TensorPair> tensors) {
  double bits = 0;
  for (const TensorPair& tensor : tensors) {
    bits += WithElement(tensor.spec.dtype, [&](auto element) {
      return TensorBits<decltype(element)>(tensor, MappingOf(tensor.spec.dtype) == Mapping::kFloat);
    });
  }
  return bits;
}

}  // namespace dws::bench
