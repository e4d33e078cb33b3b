// Full tensors in a spool.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/spool/device_target.h"
#include "common/spool/direct_target.h"
#include "common/spool/placed_memory.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"

namespace dws {

// The state of a version whose tensors are read while their sender captures it.
struct EarlyVersion {
  enum class Stage : uint8_t { kCapturing, kPublished, kGone };
  // kGone: it was given up, or takes too long. Called by several threads.
  std::function<Stage()> stage;
  // Once it is published: learns the digests of its slices. Errors as Source's.
  std::function<Status()> describe;
};

// The slices of one trainer rank that are wanted in full. Refers to objects that its maker owns.
struct FullWant {
  const RankLayout& layout;
  std::span<const RankSlice> slices;  // ascending, not empty
  // The digest of every slice of the layout at the wanted version: it proves that the slice
  // arrived. For an early version it is empty until `early->describe` has filled it.
  const std::vector<Digest>& expected;
  const EarlyVersion* early = nullptr;  // null: it is published
  // Tells the sender why its version cannot be taken: its full tensors did not come by the only
  // allowed way. DATA_LOSS: they came by it, and are not as published. Null: nobody is told.
  const std::function<void(const Status& reason)>* refuse = nullptr;
  // The memory to which they may be written at once; null: they are kept in a spool.
  DirectTarget* direct = nullptr;
  // The memory in which they belong; null: as above. Not together with `direct` or `device`.
  const PlacedMemory* placed = nullptr;
  // To which they may be copied from GPU memory: to live memory if `direct` is set, else to staging
  // memory. Null: to none.
  DeviceTarget* device = nullptr;
  TrainerRank rank = TrainerRank(0);  // for `direct` and `device`
};

// A plain value; its frames refer to bytes of the spool by offset.
struct FetchedFull {
  Spool spool;
  // By slice, in the order asked for, and in it by block. With FullWant::placed or `direct` only
  // their digests mean something: the bytes are not in the spool.
  std::vector<SpooledFrame> frames;
  // That were written to FullWant::direct; then the spool is empty.
  uint64_t direct_bytes = 0;
  // The slices that FullWant::device has staged, ascending: `frames` has none of them.
  std::vector<RankSlice> on_device = {};
};

}  // namespace dws
