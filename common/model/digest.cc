#include "common/model/digest.h"

#include <fmt/format.h>

#include "common/base/instruction_set.h"
#include "common/model/digest_kernels.h"

namespace dws {

std::string ToString(const Digest& digest) {
  return fmt::format("{:016x}{:016x}", digest.lane0, digest.lane1);
}

Digest DigestBytes(ByteSpan bytes, uint64_t first_word) {
  const uint64_t words = bytes.size() / 8;
  Digest digest = digest_kernels::MixRun(ActiveInstructionSet(), bytes.data(), words, first_word);
  // A tail is padded with zeros to a word; the position of the word is part of the mix.
  if (const size_t tail = bytes.size() % 8; tail != 0) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data() + words * 8, tail);
    digest += MixWord(first_word + words, word);
  }
  return digest;
}

Digest DigestDifference(const ChangedWords& changed, uint64_t first_word) {
  return digest_kernels::MixChanges(ActiveInstructionSet(), changed, first_word);
}

}  // namespace dws
