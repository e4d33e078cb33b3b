// Applies version folders to a local checkpoint, in place: what an engine that reloads from disk
// reads.
//
// A version is applied as a whole or not at all, whatever happens in between:
// 1. The folder is opened and checked (version_folder.h), and must follow the local version
//    (NextStep).
// 2. The folder it lies in must be of the run whose versions were applied here (run_check.h): a
//    trainer that was started anew counts from 1 again, and its deltas are not ours. Once another
//    run was seen, nothing but a full checkpoint is taken, whatever the folder has then; that is
//    remembered in digests.json. What was read in step 1 must still be there as it was.
// 3. The whole checkpoint must have the digests that it had after the last version: a byte that
//    went bad in a tensor no delta touches is found here or never.
// 4. The new bytes of every changed tensor are computed beside it and must have the digest the
//    version states. A tensor that has it already needs nothing. Until here nothing has been
//    written.
// 5. What is to be written is written down (redo.h). From here on, whoever opens the checkpoint
//    completes the change.
// 6. It is written, checked and synced; then digests.json, state.json, and the redo record goes.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/formats/held_folder.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local_state.h"
#include "common/formats/slime_delta/run_check.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws::slime {

struct ApplyOptions {
  // Step 3, and the same when the checkpoint is opened. It reads every byte: off for who does that
  // at other times, by Verify.
  bool verify_all = true;
  // HeldFolder's, of the version folders. None: nobody is called.
  HeldFolder::OnAccess on_access = nullptr;
};

struct ApplyReport {
  uint64_t version = 0;     // of the checkpoint now
  bool applied = false;     // false: it had that version already
  size_t tensor_count = 0;  // of changed ones
};

// Lifecycle: holds the lock of the checkpoint until destroyed. Threads: one at a time; works on
// those of `pool`.
class LocalCheckpoint {
 public:
  // Completes what a process that died had begun. The first time, the checkpoint is taken for sound
  // and its digests are written; the same when another program has moved its version on. NOT_FOUND:
  // no checkpoint there. FAILED_PRECONDITION: its files are links, or a change of it in place has
  // not ended. UNAVAILABLE: another process has the lock. DATA_LOSS: damaged; the message names the
  // tensors: copy the base there again, without .weight_sync, or open it without verify_all and
  // apply a full checkpoint.
  static Result<std::unique_ptr<LocalCheckpoint>> Open(FileSystem& files, ThreadPool& pool,
                                                       const std::string& folder,
                                                       const ApplyOptions& options);

  uint64_t version() const { return digests_.version; }
  const safetensors::Checkpoint& checkpoint() const { return checkpoint_; }
  // A change was begun and has failed: its files are of two versions until it is opened anew.
  bool halfway() const { return halfway_; }

  // False: its files, or .weight_sync, have been replaced or removed since it was opened.
  bool in_place() const;

  // Every tensor against its digest as of version(). DATA_LOSS names those that differ.
  Status Verify() const;

  // Applies one version folder. After any error but INTERNAL and those of the disk in step 6,
  // no weights have changed. UNAVAILABLE: not, or not all, published yet, or changed while it was
  // read. FAILED_PRECONDITION: it does not follow the local version, or is of another run of the
  // trainer, or needs tensors that are not here; names them. DATA_LOSS: the folder or the
  // checkpoint is damaged.
  Result<ApplyReport> Apply(const std::string& version_folder);
  // Step 2 alone, of a folder with version folders. Errors as of Apply.
  Status CheckRun(const std::string& versions_folder);
  // After CheckRun or Apply has refused another run: when the newest version that shows it was
  // written. A full checkpoint that is not newer may be of the run that has ended. nullopt: not
  // known. `look`: what the folder has now counts too.
  Result<std::optional<int64_t>> OtherRunSince(const std::string& versions_folder, bool look) const;

 private:
  LocalCheckpoint(FileSystem& files, ThreadPool& pool, std::string folder, ApplyOptions options,
                  std::unique_ptr<FileLock> lock, safetensors::Checkpoint checkpoint);

  Status Recover();
  Status LoadDigests();
  LocalDigests ComputeDigests(uint64_t version) const;
  Status CheckRun(const HeldFolder& versions);
  Status CheckStream(const VersionFolder& version);
  // `other_ns`: Lineage's.
  Status Refuse(const std::string& why, std::optional<int64_t> other_ns);
  Status Complete(const VersionFolder& redo);

  FileSystem& files_;
  ThreadPool& pool_;
  const std::string folder_;
  const ApplyOptions options_;
  const std::unique_ptr<FileLock> lock_;
  safetensors::Checkpoint checkpoint_;
  LocalDigests digests_;
  RunCheck run_check_;
  bool halfway_ = false;
};

}  // namespace dws::slime
