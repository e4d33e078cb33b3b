// The kernels inside this program: a fat binary for the device's driver. Empty in a build without
// --config=cuda. Only main functions call it, and pass it on.
#pragma once

#include "common/base/bytes.h"

namespace dws::cuda {

ByteSpan KernelImage();

}  // namespace dws::cuda
