// Named limits of training on demand, apart from those of common/model/limits.h because no other
// part needs them.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>

#include "common/model/unit_index.h"

namespace dws::limits {

inline constexpr uint64_t kUnitAlignment = 64;  // of tensors in a unit's buffer, in bytes
inline constexpr uint64_t kUnitBytesMax = uint64_t{1} << 40;
inline constexpr size_t kPrefetchMax = 64;     // units
inline constexpr size_t kPrefetchThreads = 4;  // units that are prefetched at the same time
inline constexpr size_t kOrderMax = size_t{4} * kTrainUnitsMax;  // units asked for in a microbatch
inline constexpr size_t kOwnersAtOnce = 8;               // owners that are read at the same time
inline constexpr size_t kGathersMax = 2 + kPrefetchMax;  // at the same time
inline constexpr size_t kTrainQueueMax = 4096;           // messages that wait for the other sender
inline constexpr size_t kPullsAtOnce = 4;                // pieces that are fetched at the same time
// Pulls that wait, of the own shard and of those for which the sender combines: one of each rank.
inline constexpr size_t kPullsWaitingMax = size_t{4} * kTrainRanksMax;
inline constexpr std::chrono::seconds kPieceDeadline{60};  // of a piece that is fetched
inline constexpr size_t kPieceChunkBytes = size_t{1} << 20;
inline constexpr std::chrono::seconds kHostCopyCall{5};      // that asks for a copy of a host
inline constexpr std::chrono::seconds kHostCopyPatience{1};  // with one that has not heard of it
inline constexpr size_t kHostCopiesWaitingMax = size_t{4} * kTrainUnitsMax;  // to be fetched
inline constexpr size_t kGatherThreads = 4;  // gathers of the rank that run or wait for owners
inline constexpr size_t kGatherCallsMax = 2 * kGathersMax;  // of the rank, that wait or run
inline constexpr uint64_t kRecordPageBytes = 8192;          // before the sums
// The memory, for each owner that is read, of blocks that it has changed since the wanted version,
// and of the deltas that turn them back.
inline constexpr uint64_t kTurnBackBytesMax = uint64_t{256} << 20;

}  // namespace dws::limits
