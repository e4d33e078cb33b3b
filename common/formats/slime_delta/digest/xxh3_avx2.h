// The update of XXH3's state with AVX2, for xxh3.cc alone.
#pragma once

#include "common/base/bytes.h"

namespace dws::slime {

// True if this build has the AVX2 variant.
#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
inline constexpr bool kHasXxh3Avx2 = true;
#else
inline constexpr bool kHasXxh3Avx2 = false;
#endif

// Does what XXH3_128bits_update does; `state` is an XXH3_state_t of the system's library.
void Xxh3UpdateAvx2(void* state, ByteSpan bytes);

}  // namespace dws::slime
