// The class tables of a rank's slices: how blocks of the next version are class-split. Learnt from
// a sample of earlier versions' blocks.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/threads/thread_pool.h"
#include "common/delta/blocks/block.h"
#include "common/model/class_table.h"
#include "common/model/layout.h"
#include "common/model/weight_version.h"

namespace dws {

class Snapshot;

// Part of a snapshot; its guard protects it. The same versions give the same tables, whatever the
// number of threads.
class ClassTables {
 public:
  explicit ClassTables(size_t slice_count) : tables_(slice_count) {}

  // Null until a version changes the slice.
  const ClassTable* Find(RankSlice slice) const {
    const std::optional<ClassTable>& table = tables_[slice.value()];
    return table.has_value() ? &*table : nullptr;
  }

  // Learns from `version`. `snapshot` has its bytes. `blocks`, by rank block number, are the steps
  // that led to it, in relative modes that need no base. A slice that has a table learns from every
  // eighth version only.
  void Learn(Snapshot& snapshot, std::span<const EncodedBlock> blocks, WeightVersion version,
             ThreadPool& pool);

 private:
  std::vector<std::optional<ClassTable>> tables_;  // by rank slice
};

}  // namespace dws
