// The header of the library is compiled here as static functions, for AVX2: with gcc a pragma
// covers all of it, and no other file sees these copies (instruction_set.h says why that matters).
// clang has no such pragma; its builds, which are for fuzzing, use the library's function.
#include "common/formats/slime_delta/digest/xxh3_avx2.h"

#include <immintrin.h>

#include <climits>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <cstring>

#include "common/base/check.h"

#if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__)
#pragma GCC push_options
#pragma GCC target("avx2")
// The pragma does not define __AVX2__ for the preprocessor, by which the header would choose.
#define XXH_VECTOR 2  // XXH_AVX2
#define XXH_INLINE_ALL
#include <xxhash.h>
#pragma GCC pop_options

namespace dws::slime {

void Xxh3UpdateAvx2(void* state, ByteSpan bytes) {
  const XXH_errorcode code =
      XXH3_128bits_update(static_cast<XXH3_state_t*>(state), bytes.data(), bytes.size());
  DWS_CHECK(code == XXH_OK);
}

}  // namespace dws::slime
#else
namespace dws::slime {

void Xxh3UpdateAvx2(void*, ByteSpan) { DWS_CHECK(false); }

}  // namespace dws::slime
#endif
