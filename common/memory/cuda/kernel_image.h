// The kernels as this program carries them: a fat binary for the device's driver. Empty in a build
// without --config=cuda. Only mains link it, and pass it on.
#pragma once

#include "common/base/bytes.h"

namespace dws::cuda {

ByteSpan KernelImage();

}  // namespace dws::cuda
