// The library makes and ends the state; only the update, which does all the work, is compiled again
// (xxh3_avx2.cc).
#include "common/formats/slime_delta/digest/xxh3.h"

#include <xxhash.h>

#include <cstring>

#include "common/base/check.h"
#include "common/formats/slime_delta/digest/xxh3_avx2.h"

namespace dws::slime {

void Xxh3::Free::operator()(XXH3_state_s* state) const { XXH3_freeState(state); }

Xxh3::Xxh3(InstructionSet set)
    : avx2_(kHasXxh3Avx2 && set >= InstructionSet::kAvx2), state_(XXH3_createState()) {
  DWS_CHECK(state_ != nullptr && XXH3_128bits_reset(state_.get()) == XXH_OK);
}

void Xxh3::Update(ByteSpan bytes) {
  if (bytes.empty()) return;
  if (avx2_) return Xxh3UpdateAvx2(state_.get(), bytes);
  DWS_CHECK(XXH3_128bits_update(state_.get(), bytes.data(), bytes.size()) == XXH_OK);
}

std::array<uint8_t, 16> Xxh3::Digest() const {
  XXH128_canonical_t canonical;
  XXH128_canonicalFromHash(&canonical, XXH3_128bits_digest(state_.get()));
  std::array<uint8_t, 16> digest;
  std::memcpy(digest.data(), canonical.digest, digest.size());
  return digest;
}

}  // namespace dws::slime
