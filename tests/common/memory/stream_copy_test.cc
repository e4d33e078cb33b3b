#include "common/memory/stream_copy.h"

#include <catch2/catch.hpp>
#include <random>
#include <vector>

namespace dws {
namespace {

TEST_CASE("a streamed copy is a copy, at every alignment and size", "[stream_copy]") {
  std::mt19937_64 random(Catch::rngSeed());
  std::vector<std::byte> from(1 << 16);
  for (std::byte& byte : from) byte = static_cast<std::byte>(random());
  for (size_t size : {0, 1, 63, 64, 65, 127, 128, 191, 4096, 65'000}) {
    for (size_t shift : {0, 1, 31, 63}) {
      std::vector<std::byte> to(from.size() + 128, std::byte{0xEE});
      StreamCopy(MutableByteSpan(to).subspan(shift, size), ByteSpan(from).subspan(shift / 2, size));
      CHECK(std::equal(to.begin() + static_cast<ptrdiff_t>(shift),
                       to.begin() + static_cast<ptrdiff_t>(shift + size),
                       from.begin() + static_cast<ptrdiff_t>(shift / 2)));
      CHECK(to[shift + size] == std::byte{0xEE});
      if (shift > 0) CHECK(to[shift - 1] == std::byte{0xEE});
    }
  }
}

}  // namespace
}  // namespace dws
