// How far the transfers of one step are, over all trainer ranks.
#pragma once

#include <atomic>
#include <cstdint>

namespace dws {

// Threads: safe from any. `total` grows as transfers begin; 0: not known.
struct TransferProgress {
  std::atomic<uint64_t> done_bytes{0};
  std::atomic<uint64_t> total_bytes{0};

  void Reset() {
    done_bytes.store(0);
    total_bytes.store(0);
  }
};

}  // namespace dws
