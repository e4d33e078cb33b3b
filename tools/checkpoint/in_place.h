// Brings a local checkpoint from one version to another where it lies, so that no crash spoils it.
//
// 1. The chain is proved: base and result, without a write.
// 2. Everything that will be written is written down first, as a delta object of absolute values
//    (CHECKPOINT/.dws-apply.redo, or FILE.dws-apply.redo of a single file), synced and renamed.
//    From then on the checkpoint is the new version, whatever its files say.
// 3. The values are written to the files, synced, and read again: digests prove them.
// 4. The redo is removed, durably.
//
// Whoever dies between 2 and 4 leaves a checkpoint that is neither version. It cannot be mistaken
// for one: commands over checkpoints look for a redo and refuse (settled.h), and the next
// ApplyInPlace repeats 3 and 4 before anything else. That may be done again and again. It first
// proves, without a write, that the redo makes its version of these files: a redo that was left
// beside others, put there since, is refused, but where it holds all that differs (whole blocks).
// And it stores what the files hold already as well: what they hold in memory the disk may have
// refused.
//
// A checkpoint that a receiver keeps is not changed. One that came to be kept while it was half
// changed is completed all the same, with the receiver locked out: it opens it only then.
//
// A file whose blocks are not its own yet (sparse, or a copy on write) may find the disk full in 3;
// the process is then ended by SIGBUS, and the same command goes on once there is room.
#pragma once

#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "tools/checkpoint/progress.h"

namespace dws::checkpoint {

struct InPlaceOutcome {
  bool finished_earlier = false;  // one that was interrupted was completed first
  bool already_applied = false;   // the checkpoint was the result: nothing written
  uint64_t version = 0;
  uint64_t changed_tensors = 0;
  uint64_t redo_bytes = 0;
};

struct InPlaceRequest {
  const std::string& checkpoint;  // a file or a folder
  std::span<const std::string> deltas;
};

// UNAVAILABLE: another process is at it, or the receiver that keeps what is to be completed.
// FAILED_PRECONDITION, DATA_LOSS: as CheckChain, with nothing written; FAILED_PRECONDITION also
// when a redo is of another state of the files, or a file of the folder, or the folder of the file,
// is half changed, or as CheckNotShared and CheckNotKept; DATA_LOSS also when the files do not hold
// what was written to them. Others, and DATA_LOSS of a disk that fails: of files and the progress;
// the same call then goes on, and the message says so when it has to.
Result<InPlaceOutcome> ApplyInPlace(FileSystem& files, const InPlaceRequest& request,
                                    ThreadPool& pool, const Progress& progress);

}  // namespace dws::checkpoint
