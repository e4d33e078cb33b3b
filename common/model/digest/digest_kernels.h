// The digest's inner loops, one variant for each instruction set. All compute the same sums.
// digest.cc uses the set of this process; tests use every set.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/base/instruction_set.h"
#include "common/model/digest/digest.h"

namespace dws::digest_kernels {

// The sum of MixWord(first_word + i, word i) over `count` words from `words` on, at any alignment.
// The machine must support `set`.
Digest MixRun(InstructionSet set, const std::byte* words, uint64_t count, uint64_t first_word);

// The same sum, of words that it copies to `to`, past the cache. `to` begins at a cache line, and
// does not overlap `words`. Loads each word once, so the sum is that of the copy, even if the
// owner of `words` writes meanwhile. The copy is visible to other threads when it returns, and
// not before the caller's earlier stores.
Digest CopyRun(InstructionSet set, const std::byte* words, std::byte* to, uint64_t count,
               uint64_t first_word);

// The sum of MixWord(n, after) - MixWord(n, before) over the words of `changed`, where n is
// `first_word` plus the word's number. The machine must support `set`.
Digest MixChanges(InstructionSet set, const ChangedWords& changed, uint64_t first_word);

// The variants.
Digest MixRunPortable(const std::byte* words, uint64_t count, uint64_t first_word);
Digest MixRunAvx2(const std::byte* words, uint64_t count, uint64_t first_word);
Digest MixRunAvx512(const std::byte* words, uint64_t count, uint64_t first_word);
Digest CopyRunAvx2(const std::byte* words, std::byte* to, uint64_t count, uint64_t first_word);
Digest CopyRunAvx512(const std::byte* words, std::byte* to, uint64_t count, uint64_t first_word);
Digest MixChangesPortable(const ChangedWords& changed, uint64_t first_word);
Digest MixChangesAvx2(const ChangedWords& changed, uint64_t first_word);
Digest MixChangesAvx512(const ChangedWords& changed, uint64_t first_word);

}  // namespace dws::digest_kernels
