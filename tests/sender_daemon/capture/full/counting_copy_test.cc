#include "sender_daemon/capture/full/counting_copy.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace dws {
namespace {

TEST_CASE("a counting copy copies exactly and counts changed elements of every width",
          "[full_version]") {
  std::mt19937_64 random(Catch::rngSeed());
  const uint32_t width = GENERATE(1U, 2U, 4U, 8U);
  // Around the vectors, and around the runs after which counters are emptied.
  for (const size_t elements : {size_t{0}, size_t{1}, size_t{15}, size_t{16}, size_t{17},
                                255 * size_t{16}, 255 * size_t{16} + 1, size_t{65'536}}) {
    for (const uint32_t one_in : {1U, 3U, 1000U}) {
      std::vector<std::byte> before(elements * width);
      for (std::byte& byte : before) byte = static_cast<std::byte>(random());
      std::vector<std::byte> after = before;
      uint64_t changed = 0;
      for (size_t i = 0; i < elements; ++i) {
        if (random() % one_in != 0) continue;
        after[i * width + random() % width] ^= static_cast<std::byte>(1U << (random() % 8));
        ++changed;
      }
      std::vector<std::byte> block = before;
      CHECK(CopyCounting(width, after, block) == changed);
      CHECK(block == after);
      CHECK(CopyCounting(width, after, block) == 0);
    }
  }
}

}  // namespace
}  // namespace dws
