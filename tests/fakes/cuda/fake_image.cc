#include "tests/fakes/cuda/fake_image.h"

#include "common/memory/cuda/kernel_image.h"

namespace dws::cuda {

ByteSpan KernelImage() {
  static constexpr uint64_t kImage[] = {kHostImageMagic};
  return std::as_bytes(std::span(kImage));
}

}  // namespace dws::cuda
