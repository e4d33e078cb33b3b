// SHA-256, and HMAC-SHA-256 with a key: objects that do not travel over TLS are checked with it.
// The only user of OpenSSL in this folder.
#pragma once

#include <array>
#include <cstddef>
#include <memory>
#include <span>

#include "common/base/bytes.h"

namespace dws::shared {

using Sha256Digest = std::array<std::byte, 32>;

// Lifecycle: Add, then Finish, which begins the next. Threads: one at a time.
class Sha256 {
 public:
  Sha256();
  ~Sha256();
  Sha256(Sha256&&) noexcept;
  Sha256& operator=(Sha256&&) noexcept;

  void Add(ByteSpan bytes);
  Sha256Digest Finish();

 private:
  struct State;
  std::unique_ptr<State> state_;
};

Sha256Digest Sha256Of(ByteSpan bytes);
Sha256Digest HmacSha256(ByteSpan key, ByteSpan bytes);

// Takes the same time wherever the two differ, so that timing does not help to guess a key.
bool SameDigest(const Sha256Digest& a, const Sha256Digest& b);

}  // namespace dws::shared
