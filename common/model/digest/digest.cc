#include "common/model/digest/digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/model/digest/digest_kernels.h"

// The portable loops, which the other variants use for their tails; and the choice of a variant.
namespace dws::digest_kernels {

Digest MixRunPortable(const std::byte* words, uint64_t count, uint64_t first_word) {
  Digest digest;
  for (uint64_t i = 0; i < count; ++i) {
    digest += MixWord(first_word + i, LoadLe<uint64_t>(words + i * 8));
  }
  return digest;
}

Digest MixChangesPortable(const ChangedWords& changed, uint64_t first_word) {
  Digest digest;
  for (size_t i = 0; i < changed.count; ++i) {
    const uint64_t number = first_word + changed.numbers[i];
    digest += MixWord(number, changed.after[i]) - MixWord(number, changed.before[i]);
  }
  return digest;
}

Digest MixRun(InstructionSet set, const std::byte* words, uint64_t count, uint64_t first_word) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return MixRunAvx512(words, count, first_word);
  if (set == InstructionSet::kAvx2) return MixRunAvx2(words, count, first_word);
#endif
  return MixRunPortable(words, count, first_word);
}

Digest CopyRun(InstructionSet set, const std::byte* words, std::byte* to, uint64_t count,
               uint64_t first_word) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return CopyRunAvx512(words, to, count, first_word);
  if (set == InstructionSet::kAvx2) return CopyRunAvx2(words, to, count, first_word);
#endif
  std::memcpy(to, words, count * 8);
  return MixRunPortable(to, count, first_word);
}

Digest MixChanges(InstructionSet set, const ChangedWords& changed, uint64_t first_word) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return MixChangesAvx512(changed, first_word);
  if (set == InstructionSet::kAvx2) return MixChangesAvx2(changed, first_word);
#endif
  return MixChangesPortable(changed, first_word);
}

}  // namespace dws::digest_kernels

namespace dws {
namespace {

constexpr size_t kLine = 64;  // of the cache

}  // namespace

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

Digest CopyAndDigest(MutableByteSpan to, ByteSpan from, uint64_t first_word) {
  DWS_CHECK(to.size() == from.size());
  const auto copy = [&](size_t offset, size_t size) {
    if (size > 0) std::memcpy(to.data() + offset, from.data() + offset, size);
    return DigestBytes(to.subspan(offset, size), first_word + offset / 8);
  };
  const size_t front =
      std::min((kLine - reinterpret_cast<uintptr_t>(to.data()) % kLine) % kLine, to.size());
  if (front % 8 != 0) return copy(0, to.size());  // lines and words do not meet
  const uint64_t words = (to.size() - front) / 8;
  Digest digest = copy(0, front);
  digest += digest_kernels::CopyRun(ActiveInstructionSet(), from.data() + front, to.data() + front,
                                    words, first_word + front / 8);
  return digest + copy(front + words * 8, to.size() % 8);
}

Digest DigestDifference(const ChangedWords& changed, uint64_t first_word) {
  return digest_kernels::MixChanges(ActiveInstructionSet(), changed, first_word);
}

}  // namespace dws
