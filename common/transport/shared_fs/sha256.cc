#include "common/transport/shared_fs/sha256.h"

#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>

#include "common/base/check.h"

namespace dws::shared {
namespace {

unsigned char* Raw(Sha256Digest& digest) { return reinterpret_cast<unsigned char*>(digest.data()); }

}  // namespace

struct Sha256::State {
  State() : context(EVP_MD_CTX_new()) { DWS_CHECK(context != nullptr); }
  ~State() { EVP_MD_CTX_free(context); }
  State(const State&) = delete;
  State& operator=(const State&) = delete;
  void Begin() const { DWS_CHECK(EVP_DigestInit_ex(context, EVP_sha256(), nullptr) == 1); }

  EVP_MD_CTX* const context;
};

Sha256::Sha256() : state_(std::make_unique<State>()) { state_->Begin(); }
Sha256::~Sha256() = default;
Sha256::Sha256(Sha256&&) noexcept = default;
Sha256& Sha256::operator=(Sha256&&) noexcept = default;

void Sha256::Add(ByteSpan bytes) {
  DWS_CHECK(EVP_DigestUpdate(state_->context, bytes.data(), bytes.size()) == 1);
}

// OpenSSL's functions fail here only without memory, or if SHA-256 is disabled; neither can
// continue.
Sha256Digest Sha256::Finish() {
  Sha256Digest digest;
  DWS_CHECK(EVP_DigestFinal_ex(state_->context, Raw(digest), nullptr) == 1);
  state_->Begin();
  return digest;
}

Sha256Digest Sha256Of(ByteSpan bytes) {
  Sha256 hash;
  hash.Add(bytes);
  return hash.Finish();
}

Sha256Digest HmacSha256(ByteSpan key, ByteSpan bytes) {
  Sha256Digest digest;
  unsigned int size = 0;
  const auto* const data = reinterpret_cast<const unsigned char*>(bytes.data());
  DWS_CHECK(HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), data, bytes.size(),
                 Raw(digest), &size) != nullptr);
  DWS_CHECK(size == digest.size());
  return digest;
}

bool SameDigest(const Sha256Digest& a, const Sha256Digest& b) {
  return CRYPTO_memcmp(a.data(), b.data(), a.size()) == 0;
}

}  // namespace dws::shared
