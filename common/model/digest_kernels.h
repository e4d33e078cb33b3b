// The digest's inner loops, once for each instruction set. All sets compute the same sums.
// Used by digest.cc with the set of this process, and by tests with every set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/instruction_set.h"
#include "common/model/digest.h"

namespace dws::digest_kernels {

// The sum of MixWord(first_word + i, word i) over `count` words from `words` on, of any alignment.
// The machine has `set`.
Digest MixRun(InstructionSet set, const std::byte* words, uint64_t count, uint64_t first_word);

// The sum of MixWord(n, after) - MixWord(n, before) over the words of `changed`, n counted from
// `first_word`. The machine has `set`.
Digest MixChanges(InstructionSet set, const ChangedWords& changed, uint64_t first_word);

// The variants.
Digest MixRunPortable(const std::byte* words, uint64_t count, uint64_t first_word);
Digest MixRunAvx2(const std::byte* words, uint64_t count, uint64_t first_word);
Digest MixRunAvx512(const std::byte* words, uint64_t count, uint64_t first_word);
Digest MixChangesPortable(const ChangedWords& changed, uint64_t first_word);
Digest MixChangesAvx2(const ChangedWords& changed, uint64_t first_word);
Digest MixChangesAvx512(const ChangedWords& changed, uint64_t first_word);

}  // namespace dws::digest_kernels
