// Applies version folders to a local checkpoint, in place, for an engine that reloads from disk.
//
// A version is applied as a whole or not at all, even if the process dies in between:
// 1. The folder is opened and checked (version_folder.h), and must follow the local version
//    (NextStep).
// 2. The folder that contains it must be of the run whose versions were applied here (run_check.h):
//    a restarted trainer counts from 1 again, and its deltas do not fit. Once another run was seen,
//    only a full checkpoint is accepted, whatever appears in the folder later; digests.json records
//    that. Something must show that a delta was made from the local version (base_proof.h). What
//    was read in step 1 must still be unchanged.
// 3. The whole checkpoint must have the digests that it had after the last version. No other step
//    finds a damaged byte in a tensor that no delta touches. If step 4 brings a tensor to the
//    digest that the version states, the tensor had the right bytes before, so its old bytes are
//    not hashed.
// 4. The new bytes of every changed tensor are computed in separate memory, window by window, and
//    must have the digest that the version states. A tensor that already has it needs nothing. The
//    version's folder must still be unchanged, and the checkpoint too.
// 5. The redo record with all new bytes is completed (redo.h). From here on, any process that opens
//    the checkpoint completes the change.
//    A full checkpoint that has other tensors than the local one replaces its files instead; steps
//    4 to 6 are then those of replacement.h.
// 6. The bytes are written and synced; then digests.json and state.json are written, and the redo
//    record is removed. A process that completes the change of another one also reads each tensor
//    again and compares its digest, which this one has just computed.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/formats/checkpoint/settled.h"
#include "common/formats/held_folder.h"
#include "common/formats/safetensors/checkpoint.h"
#include "common/formats/slime_delta/local/base_proof.h"
#include "common/formats/slime_delta/local/local_state.h"
#include "common/formats/slime_delta/local/redo.h"
#include "common/formats/slime_delta/local/replacement.h"
#include "common/formats/slime_delta/local/run_check.h"
#include "common/formats/slime_delta/version_folder.h"

namespace dws::slime {

struct ApplyOptions {
  // Do step 3, and the same check when the checkpoint is opened. It reads every byte. Set it to
  // false if you call Verify at other times.
  bool verify_all = true;
  // What must show that a delta was made from the local version.
  ProofRule proof = ProofRule::kFolder;
  // HeldFolder's OnAccess for the version folders; may be empty.
  HeldFolder::OnAccess on_access = nullptr;
};

// What applying a version has done.
struct ApplyReport {
  uint64_t version = 0;      // the checkpoint's version now
  bool applied = false;      // false: it had that version before
  size_t tensor_count = 0;   // changed tensors
  TensorChange change = {};  // of a full checkpoint with other tensors
  BaseProof proof = BaseProof::kNotNeeded;
};

// A checkpoint open for applying versions. Lifecycle: keeps other receivers out until destroyed,
// and every program of the format from Open or Retake to Release (checkpoint/settled.h). Threads:
// one at a time; it uses the threads of `pool`.
class LocalCheckpoint {
 public:
  // Completes a change that a dead process began. The first time, the checkpoint is assumed to be
  // sound and its digests are written; the same holds after another program has changed its
  // version. NOT_FOUND: no checkpoint there. FAILED_PRECONDITION: its files are links, or a change
  // in place has not finished. UNAVAILABLE: another process has the lock. DATA_LOSS: damaged; the
  // message names the tensors. To repair it, copy the base there again, without .weight_sync, or
  // open it without verify_all and apply a full checkpoint.
  static Result<std::unique_ptr<LocalCheckpoint>> Open(FileSystem& files, ThreadPool& pool,
                                                       const std::string& folder,
                                                       const ApplyOptions& options);

  // Lets other programs of the format change the checkpoint until Retake. Until then only
  // version(), contents(), halfway() and in_place() may be called.
  void Release();
  // Takes the lock again, if it was released. UNAVAILABLE: another program has it; the message
  // names it. ABORTED: the files, state.json or digests.json have changed since Release: open the
  // checkpoint again. Other errors come from the file system.
  Status Retake();

  uint64_t version() const { return digests_.version; }
  // Equal for equal tensors, whatever the version: a hash over their digests.
  std::string contents() const;
  const safetensors::Checkpoint& checkpoint() const { return checkpoint_; }
  // A change has begun and failed: the files are a mixture of two versions until the checkpoint is
  // opened again.
  bool halfway() const { return halfway_; }

  // False: the files, or .weight_sync, have been replaced, cut or removed since it was opened.
  bool in_place() const;

  // Compares every tensor with its digest as of version(). DATA_LOSS: some differ; the message
  // names them.
  Status Verify() const;

  // Applies one version folder. After any error except INTERNAL and disk errors in step 6 the
  // weights are unchanged. UNAVAILABLE: the version is not or only partly published yet, or changed
  // while it was read. FAILED_PRECONDITION: it does not follow the local version, is of another run
  // of the trainer, or needs tensors that are not here; the message names them. DATA_LOSS: the
  // folder or the checkpoint is damaged.
  Result<ApplyReport> Apply(const std::string& version_folder);
  // Returns whether the last Apply was refused because nothing proves which version the delta was
  // made from.
  bool unproved() const { return unproved_; }
  // Only step 2, for a folder with version folders. Errors as of Apply.
  Status CheckRun(const std::string& versions_folder);
  // After CheckRun or Apply has refused another run: the time at which the newest version that
  // shows it was written. A full checkpoint that is not newer may be of the run that has ended.
  // nullopt: not known. With `look`, the current contents of the folder count too.
  Result<std::optional<int64_t>> OtherRunSince(const std::string& versions_folder, bool look) const;

 private:
  LocalCheckpoint(FileSystem& files, ThreadPool& pool, std::string folder, ApplyOptions options,
                  checkpoint::KeptLocks locks, safetensors::Checkpoint checkpoint);

  // The stamps of all files that a program of the format changes; nullopt: there is no such file.
  using Stamps = std::map<std::string, std::optional<FileStamp>>;
  Stamps StampsNow() const;
  Status Recover();
  // Writes a full version that has other tensors (replacement.h).
  Result<ApplyReport> Replace(const VersionFolder& version, TensorChange change);
  // Step 4 of a replacement.
  Status FinishReplacement(LocalDigests after);
  Status LoadDigests();
  LocalDigests ComputeDigests(uint64_t version) const;
  // Returns RunFinding::local_there.
  Result<bool> CheckRun(const HeldFolder& versions);
  Status CheckStream(const VersionFolder& version);
  // That a delta which names its base names the local version.
  Status CheckBase(const VersionFolder& version, const HeldFolder& versions) const;
  // Records the refusal. `other_ns` as in Lineage.
  Status Refuse(const std::string& why, std::optional<int64_t> other_ns);
  // ABORTED: another program has changed the checkpoint since `stamps`.
  Status CheckStamps(const Stamps& stamps) const;
  Status Complete(const VersionFolder& redo, ReplayCheck check);

  FileSystem& files_;
  ThreadPool& pool_;
  const std::string folder_;
  const ApplyOptions options_;
  checkpoint::KeptLocks locks_;  // `work` is null when it is released
  Stamps released_;              // as of Release
  safetensors::Checkpoint checkpoint_;
  LocalDigests digests_;
  RunCheck run_check_;
  bool halfway_ = false;
  bool unproved_ = false;
};

}  // namespace dws::slime
