// Quantises tiles on the GPU that keeps a copy of the trainer's snapshot (capture/gpu_copies.h).
// Windows of codes, scales and amax cross PCIe to page-locked memory, and the host stores one while
// the GPU makes the next.
//
// The host's snapshot is authoritative, and the copy may be damaged. So after the last tile of a
// slice the GPU computes the digest of the slice in the copy, and nothing is used unless that is
// the snapshot's. A GPU is used for a recipe once it has quantised every BF16 value as the host
// does. In every other case the host quantises.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <set>
#include <span>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/cuda/device_weights.h"
#include "common/quantise/quantise.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lifecycle: of the views of one state of the trainer's rank. When it is first used, it takes about
// 160 MiB of a GPU, and 32 MiB and twice window_bytes of page-locked memory. Threads: one at a
// time.
class DeviceTiles {
 public:
  static constexpr uint64_t kWindowBytesMin = uint64_t{1} << 18;  // the results of a proof
  struct Options {
    // The host quantises fewer elements before a GPU has begun.
    uint64_t elements_min = uint64_t{1} << 20;
    // The results that cross PCIe at once: kWindowBytesMin to half of WorkLane::kScratchBytes.
    uint64_t window_bytes = uint64_t{32} << 20;
  };
  // What tiles are made of, and where they go: as quantise::Quantise.
  struct Job {
    const quantise::TileGrid& grid;
    std::span<const uint16_t> tensor_amax;
    quantise::Destination to;
  };

  DeviceTiles(RankStatePtr trainer, const Options& options);
  ~DeviceTiles();

  // Quantises these tiles (ascending) of the trainer's slice, and perhaps others of it, which stay
  // as they were if `to` has them. No capture of the trainer's snapshot may run meanwhile. Returns
  // the tiles that are left to the host: none; `tiles`, if no GPU may quantise them; all of the
  // slice, if `to` has been written to in vain.
  std::vector<quantise::TileRun> Quantise(RankSlice slice, const Job& job,
                                          std::vector<quantise::TileRun> tiles, ThreadPool& pool);

 private:
  struct Gpu;
  // A part of an output: `bytes` of it begin at `begin`, and in the results at `at`.
  struct Part {
    MutableByteSpan bytes;
    uint64_t begin = 0;
    uint64_t at = 0;
  };
  // Consecutive tiles whose outputs are contiguous.
  struct Window {
    quantise::TileRun tiles;
    Part codes;
    Part scales;
    Part amax;
    uint64_t bytes = 0;  // of the results
  };

  // The GPU whose copy has the slice in the snapshot's version; null: there is none.
  Gpu* Find(RankSlice slice);
  // Takes its memory, and lets it prove the recipe.
  Status Prepare(Gpu& gpu, const quantise::Recipe& recipe, ThreadPool& pool);
  // INTERNAL: the GPU has other codes than the host; or its own errors.
  Status Prove(Gpu& gpu, const quantise::Recipe& recipe, ThreadPool& pool);
  // The most tiles of a window, which begins at a multiple of it. 0: a window has no room.
  uint64_t WindowTiles(const quantise::TileGrid& grid) const;
  static Window WindowOf(const Job& job, const quantise::TileRun& tiles);
  // Starts to quantise a window of the elements at `source`, in the lane's turn.
  static Status Begin(cuda::WorkLane& lane, uint64_t source, const Job& job, const Window& window,
                      MutableByteSpan results);
  static void Store(const Window& window, ByteSpan results, ThreadPool& pool);
  // DATA_LOSS: the copy is not the snapshot.
  Status Run(Gpu& gpu, RankSlice slice, const Job& job, std::span<const quantise::TileRun> tiles,
             ThreadPool& pool);
  Status CheckDigest(Gpu& gpu, RankSlice slice);

  const RankStatePtr trainer_;
  const Options options_;
  std::vector<std::unique_ptr<Gpu>> gpus_;
};

}  // namespace dws
