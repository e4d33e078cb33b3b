// In a build with --config=cuda.
#include "common/memory/cuda/kernel_image.h"

// The symbols of the fat binary that the assembler embeds (BUILD.bazel).
extern "C" {
extern const std::byte dws_kernel_image_begin[];
extern const std::byte dws_kernel_image_end[];
}

namespace dws::cuda {

ByteSpan KernelImage() { return {dws_kernel_image_begin, dws_kernel_image_end}; }

}  // namespace dws::cuda
