// XXH3 of 128 bits with seed 0, in pieces. The system's library hashes with SSE2. This code uses
// AVX2 if the machine has it, which is two to three times as fast. So a pass over a tensor can hash
// the bytes that it has in the cache at little cost.
#pragma once

#include <array>
#include <cstdint>
#include <memory>

#include "common/base/bytes.h"
#include "common/base/instruction_set.h"

struct XXH3_state_s;

namespace dws::slime {

// Lifecycle: Update any number of times, then Digest. Threads: one at a time.
class Xxh3 {
 public:
  explicit Xxh3(InstructionSet set = ActiveInstructionSet());

  void Update(ByteSpan bytes);
  // The canonical form: most significant byte first.
  std::array<uint8_t, 16> Digest() const;

 private:
  struct Free {
    void operator()(XXH3_state_s* state) const;
  };
  bool avx2_;
  std::unique_ptr<XXH3_state_s, Free> state_;
};

}  // namespace dws::slime
