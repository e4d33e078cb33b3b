// In a build without --config=cuda.
#include "common/memory/cuda/kernel_image.h"

namespace dws::cuda {

ByteSpan KernelImage() { return {}; }

}  // namespace dws::cuda
