// In a build with --config=cuda programs contain the kernels.
#include "common/memory/cuda/kernel_image.h"

#include <catch2/catch.hpp>
#include <string_view>

#include "common/memory/cuda/kernels/kernel_args.h"
#include "tests/fakes/cuda/fake_image.h"

namespace dws::cuda {
namespace {

TEST_CASE("a build with --config=cuda contains a fat binary", "[cuda]") {
  const ByteSpan image = KernelImage();
  REQUIRE(image.size() > 16);
  CHECK(LoadLe<uint32_t>(image.data()) == kFatBinaryMagic);
  CHECK(reinterpret_cast<uintptr_t>(image.data()) % 8 == 0);
  // The header says how long it is: 16 bytes and what follows.
  CHECK(LoadLe<uint64_t>(image.data() + 8) + 16 == image.size());
}

}  // namespace
}  // namespace dws::cuda
