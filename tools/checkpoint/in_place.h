// Changes a local checkpoint from one version to another in place. A crash at any point can be
// repaired.
//
// 1. The chain's base and result are proved, without a write.
// 2. All values that will be written are first stored in a redo record: a delta object of absolute
//    values (CHECKPOINT/.dws-apply.redo, or FILE.dws-apply.redo for a single file), synced and
//    renamed. From then on the checkpoint counts as the new version, whatever its files contain.
// 3. The values are written to the files, synced, and read again: digests prove them.
// 4. The redo record is removed, durably.
//
// A process that dies between 2 and 4 leaves a checkpoint that is neither version. It is never used
// as one: commands for checkpoints look for a redo record and refuse (settled.h), and the next
// ApplyInPlace first repeats 3 and 4, which is safe any number of times. Before that it proves,
// without a write, that the redo record gives its version with these files. If the files were
// replaced since, the record is refused, unless it has all blocks that differ. The repetition also
// stores values that the files already have: memory may have them although the disk refused them.
//
// A checkpoint that a receiver keeps is not changed. If a receiver began to keep it while it was
// half changed, the change is still completed, and the receiver is locked out until then.
//
// With a file whose disk blocks are not allocated yet (sparse, or a copy on write), the disk may
// become full in step 3. The result is DATA_LOSS then; run the same command again when there is
// room.
#pragma once

#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "tools/checkpoint/parts/progress.h"

namespace dws::checkpoint {

// What ApplyInPlace has done.
struct InPlaceOutcome {
  bool finished_earlier = false;  // it first completed an interrupted call
  bool already_applied = false;   // the checkpoint already was the result: nothing written
  uint64_t version = 0;
  uint64_t changed_tensors = 0;
  uint64_t redo_bytes = 0;
};

// A checkpoint and the deltas to apply to it.
struct InPlaceRequest {
  const std::string& checkpoint;  // a file or a folder
  std::span<const std::string> deltas;
};

// UNAVAILABLE: another process is changing the checkpoint, or the receiver that keeps a
// half-changed one is at work. FAILED_PRECONDITION, DATA_LOSS: as CheckChain, with nothing written.
// FAILED_PRECONDITION also: a redo record does not belong to these files, a file of the folder or
// the folder of the file is half changed, or as CheckNotShared and CheckNotKept. DATA_LOSS also:
// the files do not have the values that were written to them. Others, and DATA_LOSS of a failing
// disk: of files and the progress. Repeating the call then continues; the message says so when it
// is needed.
Result<InPlaceOutcome> ApplyInPlace(FileSystem& files, const InPlaceRequest& request,
                                    ThreadPool& pool, const Progress& progress);

}  // namespace dws::checkpoint
