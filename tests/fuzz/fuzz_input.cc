#include "tests/fuzz/fuzz_input.h"

#include "common/delta/bits/element.h"

namespace dws::fuzz {
namespace {

// Adds `step` to `count` elements first, first + stride, ...; stops at the end of the block.
template <typename Element>
void StepRun(MutableByteSpan block, size_t first, size_t count, size_t stride, uint64_t step) {
  using Bits = typename Element::Bits;
  const size_t elements = block.size() / Element::kBytes;
  for (size_t i = first; i < elements && count > 0; i += stride, --count) {
    std::byte* at = block.data() + i * Element::kBytes;
    StoreLe(at, Element::FromStep(LoadLe<Bits>(at), static_cast<Bits>(step)));
  }
}

// Changes each element with a chance of `density` / 256 by a step of up to `step_bits` bits.
template <typename Element>
void Noise(MutableByteSpan block, uint32_t seed, uint32_t density, uint32_t step_bits) {
  uint64_t state = seed;
  for (size_t i = 0; i < block.size() / Element::kBytes; ++i) {
    state = state * 6364136223846793005 + 1442695040888963407;
    if ((state >> 32 & 0xFF) >= density) continue;
    const uint64_t step = state >> 40 & LowBits(step_bits % 25);
    StepRun<Element>(block, i, 1, 1, (state >> 63) != 0 ? step + 1 : 0 - step - 1);
  }
}

template <typename Element>
void Change(FuzzInput& input, size_t& position, MutableByteSpan block) {
  const uint8_t kind = input.Take<uint8_t>();
  switch (kind % 5) {
    case 0:  // one unit up or down, a little after the last one
      position += input.Take<uint8_t>();
      StepRun<Element>(block, position++, 1, 1, (kind & 0x80) != 0 ? 1 : ~uint64_t{0});
      return;
    case 1: {  // a step of two bytes, anywhere after the last one
      position += input.Take<uint16_t>();
      const auto step = static_cast<uint64_t>(int64_t{input.Take<int16_t>()});
      StepRun<Element>(block, position++, 1, 1, step);
      return;
    }
    case 2: {  // any step anywhere
      const size_t at = input.Take<uint16_t>();
      StepRun<Element>(block, at, 1, 1, input.Take<uint64_t>());
      return;
    }
    case 3: {  // a run
      const size_t at = input.Take<uint16_t>();
      const size_t count = input.Take<uint16_t>();
      const size_t stride = size_t{input.Take<uint8_t>()} + 1;
      const auto step = static_cast<uint64_t>(int64_t{input.Take<int8_t>()});
      StepRun<Element>(block, at, count, stride, step);
      return;
    }
    default: {
      const auto seed = input.Take<uint32_t>();
      const auto density = input.Take<uint8_t>();
      Noise<Element>(block, seed, density, input.Take<uint8_t>());
      return;
    }
  }
}

}  // namespace

DType TakeDType(FuzzInput& input) { return *DTypeFromNumber(input.Take<uint8_t>() % 16 + 1); }

uint32_t TakeElementCount(FuzzInput& input) {
  const auto kind = input.Take<uint8_t>();
  const uint32_t count = input.Take<uint16_t>();
  if (kind == 0xFF && count == 0xFFFF) return count + 1;
  return count % (kind < 0xF0 ? 256 : 2048) + 1;
}

Bytes TakeBlock(FuzzInput& input, size_t size_bytes) {
  const auto kind = input.Take<uint8_t>();
  Bytes block(size_bytes);
  if (kind >= 0xE0) {
    uint64_t state = input.Take<uint32_t>();
    for (std::byte& byte : block) {
      state = state * 6364136223846793005 + 1442695040888963407;
      byte = static_cast<std::byte>(state >> 56);
    }
    return block;
  }
  const ByteSpan pattern = input.TakeBytes(kind % 33);
  if (pattern.empty()) return block;
  size_t filled = std::min(size_bytes, pattern.size());
  std::copy_n(pattern.begin(), filled, block.begin());
  while (filled < size_bytes) {
    const size_t more = std::min(filled, size_bytes - filled);
    std::copy_n(block.begin(), more, block.begin() + static_cast<ptrdiff_t>(filled));
    filled += more;
  }
  return block;
}

std::optional<ClassTable> TakeClassTable(FuzzInput& input) {
  const Result<ClassTable> table =
      UnpackClassTable(input.TakeBytes(input.Take<uint8_t>() % (kClassesMax + 3)));
  if (!table.ok()) return std::nullopt;
  return *table;
}

void TakeChanges(FuzzInput& input, DType dtype, size_t changes_max, MutableByteSpan block) {
  size_t position = 0;
  WithElement(dtype, [&](auto element) {
    for (size_t i = 0; i < changes_max && !input.empty(); ++i) {
      Change<decltype(element)>(input, position, block);
    }
  });
}

}  // namespace dws::fuzz
