// The content of KernelImage() in test builds, which the fake driver accepts as a module: kernels
// that the host runs. The fake accepts fat binaries too, and runs the host's kernels for them.
#pragma once

#include <cstdint>

namespace dws::cuda {

inline constexpr uint64_t kHostImageMagic = 0x314b'5453'4f48'5744;  // "DWHOSTK1"
inline constexpr uint32_t kFatBinaryMagic = 0xba55'ed50;

}  // namespace dws::cuda
