// BLAKE3, the plain hash with 32 bytes of output, for slime's checksum format of that name. It is
// written here because Debian 12 has no library for it. It is portable and not optimized; fast
// paths use xxh3-128.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/base/bytes.h"

namespace dws::slime {

// Section 2 of the BLAKE3 paper, in pieces. Memory grows with the logarithm of the size. Lifecycle:
// Update any number of times, then Digest. Threads: one at a time.
class Blake3 {
 public:
  void Update(ByteSpan bytes);
  std::array<uint8_t, 32> Digest() const;

 private:
  using ChainingValue = std::array<uint32_t, 8>;

  // Bytes not hashed yet: at least one after the first Update with bytes.
  std::vector<std::byte> chunk_;
  uint64_t chunks_ = 0;               // hashed
  std::vector<ChainingValue> stack_;  // of whole subtrees, the largest first
};

}  // namespace dws::slime
