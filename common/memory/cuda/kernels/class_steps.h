// Steps of class-split blocks (common/delta/FORMAT.md, mode 3, planes 3 and 5 to 7), from the old
// values that the sweep has staged: the old value says whether the size of a change is in these
// planes, and how it is written.
#pragma once

#include <cstdint>

#include "common/memory/cuda/kernels/class_heads.h"
#include "common/memory/cuda/kernels/class_sweep.h"
#include "common/memory/cuda/kernels/collectives.h"
#include "common/memory/cuda/kernels/stage_task.h"
#include "common/memory/cuda/kernels/value_stream.h"

namespace dws::cuda::kernels {

// The planes of the sizes of hot changes, with the current position in each.
struct HotStream {
  uint32_t remainders = 0;
  uint32_t quotients = 0;
  EscapeStream escapes;
};

template <typename Bits>
DWS_KERNEL uint32_t EscapeWidth(const StageTask<Bits>& task) {
  return task.parameters >> 5 & 0x7F;
}

// Reads the sizes of the hot changes of a round: |step| - 1; 0 for other changes, for which
// `widths` is 0 too. False: damaged.
template <typename Bits>
DWS_KERNEL bool NextSizes(const StageTask<Bits>& task, uint32_t hot, const Vec<uint32_t>& widths,
                          HotStream& stream, Vec<uint64_t>& sizes) {
  const Warp& warp = task.warp;
  const Vec<uint32_t> ends = RunningSum(warp, widths);
  Vec<uint64_t> dense;  // the quotients of hot changes, side by side
  if (!NextQuotients(warp, task.payload, PopCount(hot), stream.quotients, dense)) return false;
  Vec<uint32_t> from;
  warp.lanes([&](uint32_t lane) { from[lane] = PopCount(Before(hot, lane)); });
  Vec<uint64_t> quotients = warp.Shuffle(dense, from);
  warp.lanes([&](uint32_t lane) {
    if ((hot >> lane & 1) == 0) quotients[lane] = 0;
  });
  if (!NextEscapes(warp, task.payload, stream.escapes, quotients)) return false;
  Vec<uint32_t> bad;
  warp.lanes([&](uint32_t lane) {
    if ((hot >> lane & 1) == 0) return;
    const uint32_t width = widths[lane];
    bad[lane] = quotients[lane] > ~uint64_t{0} >> width ? 1 : 0;
    sizes[lane] = quotients[lane] << width |
                  task.payload.Number(stream.remainders + ends[lane] - width, width);
  });
  stream.remainders += warp.Broadcast(ends, Warp::kLanes - 1);
  return warp.Ballot(bad) == 0;
}

// Replaces the staged old values by steps; exceptions get steps of +-1. Returns the end of the
// planes of sizes; kCutOff: damaged.
template <typename Bits>
DWS_KERNEL uint32_t StageSteps(const StageTask<Bits>& task, const BlockTable& table,
                               const ClassPlanes& planes, const ClassScratch& scratch) {
  const Warp& warp = task.warp;
  HotStream stream;
  stream.remainders = planes.sizes;
  stream.quotients = planes.sizes + scratch.hot_bits;
  stream.escapes.width = EscapeWidth(task);
  if (stream.quotients > task.payload.bits() || stream.escapes.width >= kElementBits<Bits>) {
    return kCutOff;
  }
  if (stream.escapes.width != 0) {
    stream.escapes.at = SkipOnes(warp, task.payload, stream.quotients, scratch.hot);
    if (stream.escapes.at == kCutOff) return kCutOff;
  }
  warp.Sync();
  for (uint32_t begin = 0; begin < task.nnz; begin += Warp::kLanes) {
    const uint32_t count = task.Round(begin);
    Vec<uint32_t> is_hot;
    Vec<uint32_t> widths;
    warp.lanes([&](uint32_t lane) {
      if (lane >= count) return;
      const uint32_t byte = MagnitudeByte(Load<Bits>(task.ValueAt(begin + lane)));
      if (static_cast<int32_t>(byte) >= table.hot_below) return;
      is_hot[lane] = 1;
      widths[lane] = HotWidth<Bits>(table, byte);
    });
    const uint32_t hot = warp.Ballot(is_hot);
    Vec<uint64_t> sizes;
    if (hot != 0 && !NextSizes(task, hot, widths, stream, sizes)) return kCutOff;
    const uint64_t negative = task.payload.Word(planes.signs + begin);
    Vec<uint32_t> bad;
    warp.lanes([&](uint32_t lane) {
      if (lane >= count) return;
      const bool below = (negative >> lane & 1) != 0;
      const uint64_t magnitude = sizes[lane] + 1;
      bad[lane] = magnitude == 0 || !IsStep<Bits>(magnitude, below) ? 1 : 0;
      Store<Bits>(task.ValueAt(begin + lane), SignedStep<Bits>(magnitude, below));
    });
    if (warp.Ballot(bad) != 0) return kCutOff;
  }
  if (!EscapesEnd(warp, stream.escapes)) return kCutOff;
  return stream.escapes.width == 0 ? stream.quotients : stream.escapes.at;
}

}  // namespace dws::cuda::kernels
