#include "tests/common/delta/samples.h"

#include <fmt/format.h>

#include <cstdlib>
#include <random>

#include "common/delta/bits/element.h"

namespace dws::samples {
namespace {

void Store(Bytes& bytes, uint32_t element_bytes, size_t index, uint64_t value) {
  std::memcpy(bytes.data() + index * element_bytes, &value, element_bytes);
}

// A state whose element i is pattern[i % pattern.size()].
Bytes Repeat(DType dtype, uint32_t element_count, const std::vector<uint64_t>& pattern) {
  Bytes bytes(size_t{element_count} * ElementBytes(dtype));
  for (size_t i = 0; i < element_count; ++i) {
    Store(bytes, ElementBytes(dtype), i, pattern[i % pattern.size()]);
  }
  return bytes;
}

}  // namespace

uint64_t Random::Next() {
  uint64_t x = state_ += 0x9E3779B97F4A7C15;
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
  return x ^ (x >> 31);
}

bool Random::Chance(double probability) {
  return static_cast<double>(Next() >> 11) * 0x1p-53 < probability;
}

uint64_t TestSeed() {
  const char* fixed = std::getenv("DWS_TEST_SEED");
  const uint64_t seed = fixed != nullptr
                            ? std::strtoull(fixed, nullptr, 0)
                            : uint64_t{std::random_device()()} << 32 | std::random_device()();
  fmt::print("seed {} (repeat with DWS_TEST_SEED={})\n", seed, seed);
  return seed;
}

Bytes RandomBytes(Random& random, size_t size) {
  Bytes bytes(size);
  for (size_t i = 0; i < size; i += 8) {
    const uint64_t word = random.Next();
    std::memcpy(bytes.data() + i, &word, std::min<size_t>(8, size - i));
  }
  return bytes;
}

Bytes Nudge(Random& random, DType dtype, const Bytes& before, double density, uint32_t step_bits) {
  Bytes after = before;
  WithElement(dtype, [&](auto element) {
    using E = decltype(element);
    using Bits = typename E::Bits;
    for (size_t at = 0; at < after.size(); at += E::kBytes) {
      if (!random.Chance(density)) continue;
      uint64_t step = random.Chance(0.9) ? 1 : 1 + (random.Next() & LowBits(step_bits));
      if (random.Chance(0.5)) step = 0 - step;
      StoreLe(after.data() + at,
              E::FromStep(LoadLe<Bits>(after.data() + at), static_cast<Bits>(step)));
    }
  });
  return after;
}

std::vector<Hostile> HostilePairs(Random& random, DType dtype, uint32_t element_count) {
  const uint32_t bits = ElementBytes(dtype) * 8;
  const uint64_t ones = LowBits(bits);
  const uint64_t sign = uint64_t{1} << (bits - 1);
  const Bytes zeros = Repeat(dtype, element_count, {0});
  const Bytes noise = RandomBytes(random, zeros.size());
  const Bytes other_noise = RandomBytes(random, zeros.size());
  Bytes one_outlier = zeros;
  for (size_t i = 0; i < element_count; i += 3)
    Store(one_outlier, ElementBytes(dtype), i, 2 + i % 2);
  Store(one_outlier, ElementBytes(dtype), element_count - 1, ones >> 1);
  Bytes last_only = noise;
  last_only.back() ^= std::byte{1};
  // All ones and their neighbours are NaNs of both signs with every payload for the float types.
  return {{"nothing changes", noise, noise},
          {"only the last element", noise, last_only},
          {"zero to minus zero", zeros, Repeat(dtype, element_count, {sign})},
          {"zeros of either sign, alternating", Repeat(dtype, element_count, {0, sign}),
           Repeat(dtype, element_count, {sign, 0})},
          {"NaN payloads", Repeat(dtype, element_count, {ones, ones >> 1, ones - 1}),
           Repeat(dtype, element_count, {ones >> 1, ones - 1, ones, sign - 2})},
          {"the largest step", zeros, Repeat(dtype, element_count, {0, sign, ones, ones >> 1})},
          {"all ones to zero", Repeat(dtype, element_count, {ones}), zeros},
          {"random bits to zero", noise, zeros},
          {"random bits to random bits", noise, other_noise},
          {"small steps and one outlier", zeros, one_outlier}};
}

}  // namespace dws::samples
