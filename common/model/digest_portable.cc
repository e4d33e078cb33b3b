#include "common/model/digest_kernels.h"

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

Digest MixChanges(InstructionSet set, const ChangedWords& changed, uint64_t first_word) {
#if defined(__x86_64__)
  if (set == InstructionSet::kAvx512) return MixChangesAvx512(changed, first_word);
  if (set == InstructionSet::kAvx2) return MixChangesAvx2(changed, first_word);
#endif
  return MixChangesPortable(changed, first_word);
}

}  // namespace dws::digest_kernels
