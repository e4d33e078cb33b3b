#include "common/model/digest.h"

#include <fmt/format.h>

namespace dws {

std::string ToString(const Digest& digest) {
  return fmt::format("{:016x}{:016x}", digest.lane0, digest.lane1);
}

Digest DigestBytes(ByteSpan bytes, uint64_t first_word) {
  Digest digest;
  const std::byte* at = bytes.data();
  const uint64_t words = bytes.size() / 8;
  for (uint64_t i = 0; i < words; ++i) {
    digest += MixWord(first_word + i, LoadLe<uint64_t>(at + i * 8));
  }
  if (const size_t tail = bytes.size() % 8; tail != 0) {
    uint64_t word = 0;
    std::memcpy(&word, at + words * 8, tail);
    digest += MixWord(first_word + words, word);
  }
  return digest;
}

}  // namespace dws
