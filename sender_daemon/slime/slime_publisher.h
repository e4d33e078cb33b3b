// Publishes versions as slime's folders weight_vNNNNNN, which unmodified readers of that format
// apply, in addition to announcing them. It works on its own thread, from the versions that the log
// retains. Never blocks publishing; retries failures.
//
//   1. A version published right after the previous one, with the next number, is a delta.
//   2. The first version is a full checkpoint. So is the newest one when the chain cannot be
//      continued: a number was left out, the log lacks the next delta, or a version can no longer
//      be read or is damaged in our memory. With `keep`, so is the version after `keep` deltas: old
//      versions can only be removed up to a full checkpoint, because a new reader needs every
//      version from a full checkpoint to the newest. With --slime-first=base the folder begins with
//      version 1 as a delta of the checkpoint that readers start from, which has an entry for every
//      tensor; with a full one if that does not work out.
//   3. Files of a failed attempt are removed. So are the versions that none of the newest `keep`
//      versions needs: those before the full checkpoint on which the oldest of them builds.
//   4. Versions that an earlier process wrote for this stream stay, and a new chain begins after
//      them. Versions of others are refused (slime_folder.h).
//   5. The command --slime-after-write runs after each version. If it is required, a version for
//      which it fails is not reported as published: the command runs again until it succeeds, and
//      until then nothing else is written or removed. It also runs for a version that an earlier
//      process wrote last.
//   6. If the folder has changed since this sender left it, it is taken again by the same rules.
//   7. If the trainer has several ranks, rank 0's sender does all this, and each version is joined
//      from the parts of all ranks (part_request.h). The senders of the other ranks only write
//      their parts (parts_member.h). A rank that cannot write a delta has the next version be full.
//   8. With --slime-view all this is done with the state of that view. The stream that owns the
//      folder then names the view too, and the base checkpoint is one in the view's form.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/thread_pool.h"
#include "common/transport/shared_fs/visibility_hook.h"
#include "sender_daemon/publish/offer_loop.h"
#include "sender_daemon/slime/base_checkpoint.h"
#include "sender_daemon/slime/parts_leader.h"
#include "sender_daemon/slime/parts_member.h"
#include "sender_daemon/slime/slime_folder.h"
#include "sender_daemon/slime/slime_writer.h"

namespace dws {

// The options --slime-*.
struct SlimeDirOptions {
  std::string root;  // empty: none
  slime::Encoding encoding = slime::Encoding::kXor;
  slime::ChecksumFormat checksum = slime::ChecksumFormat::kXxh3;
  size_t keep = 0;          // versions; 0: all
  std::string checkpoint;   // that readers start from
  std::string view = {};    // published in place of the trainer's own tensors; empty: none
  bool from_base = false;   // rule 2: version 1 is a delta of the checkpoint
  std::string after_write;  // a command; empty: none
  bool after_write_required = false;
  size_t threads = 1;  // that encode deltas
};

// What status and metrics show.
struct SlimeView {
  std::string folder;                   // empty: none
  std::optional<WeightVersion> newest;  // in the folder, of the current stream
  uint64_t versions = 0;                // written
  uint64_t fulls = 0;                   // of these, number of full checkpoints
  uint64_t bytes = 0;                   // of their tensors
  uint64_t failures = 0;                // attempts that failed
};

// Lifecycle: Start, then Stop or the destructor. Threads: safe from any.
class SlimePublisher {
 public:
  struct Options {
    SlimeDirOptions dir;
    BaseCheckpoint base = {};
    shared::VisibilityHook after_write = {};  // runs after each version
    // Called once for each version for which our own memory is found damaged.
    std::function<void(const RankStatePtr&)> on_damage = nullptr;
    std::chrono::milliseconds retry_delay = limits::kOfferRetryDelayMin;  // doubles
    std::chrono::milliseconds part_wait_max = kPartWaitMax;  // for other ranks; then an error
  };

  // `files` must outlive it.
  SlimePublisher(Options options, FileSystem& files);

  void Start() { loop_.Start(); }
  // A trainer has registered, or `state` may have a new version. Never blocks.
  void Offer(RankStatePtr state) { loop_.Offer(std::move(state)); }
  // Everything offered is in the folder, or the last attempt failed.
  bool settled() const { return loop_.settled() && (!waits_ || loop_.failure().has_value()); }
  std::optional<PlaceFailure> failure() const { return loop_.failure(); }
  void Stop() { loop_.Stop(); }

  SlimeView view() const;

  // Runs one round, for tests without the thread. Returns true if there is more to do.
  Result<bool> Step() { return loop_.StepOnce(); }

 private:
  // A version that is written, but the command has not run for it, or has failed although it is
  // required.
  struct Unreported {
    WeightVersion version;
    bool full = false;
    uint64_t bytes = 0;
  };
  struct Next {
    RetainedVersionPtr version;  // null: none
    bool full = false;
    bool from_base = false;
  };
  // Progress of the state that is published now.
  struct Progress {
    Progress(SlimeWriter made, SlimeFolder taken)
        : writer(std::move(made)), folder(std::move(taken)) {}
    SlimeWriter writer;
    SlimeFolder folder;
    std::optional<WeightVersion> last;  // written; a delta may follow it
    std::optional<Unreported> unreported;
    bool from_base = false;                // the first version may be a delta of the base
    std::optional<WeightVersion> damaged;  // a full checkpoint of it failed because of damage
    // Rule 7; nullopt: there is one rank.
    std::optional<PartsLeader> leader;
    Next asked;              // whose parts are asked for, while leader->open()
    uint64_t own_bytes = 0;  // of our part of it
    Status unfit;            // the ranks' tensors are no checkpoint; until they register again
    // A full checkpoint that a rank could not write its part of, and why. The next version is
    // tried.
    std::pair<std::optional<WeightVersion>, Status> refused;
  };

  Result<bool> Work(const RankStatePtr& offered);
  // For the sender of another rank than 0.
  Result<bool> WorkAsMember(const RankStatePtr& offered);
  // After WriteVersion has failed.
  Result<bool> GiveUp(const Next& next, const Status& why);
  void ForgetFolder();
  Status Adopt(const RankStatePtr& state);
  // FAILED_PRECONDITION: the base checkpoint has a tensor that is not published. `has` says which
  // tensors are.
  Status CheckTensors(const std::function<bool(const std::string&)>& has) const;
  Result<Next> ChooseNext() const;  // rules 1 and 2
  bool FullDue() const;             // rule 2, with `keep`
  // Returns false if other ranks have not written their parts yet.
  Result<bool> WriteVersion(const Next& next);
  Result<uint64_t> WriteOwn(const Next& next, const SlimeWriter::Publication& publication);
  // ABORTED also: the base is not what the trainer began with, by its tensors.
  Result<uint64_t> WriteFromBase(const RetainedVersionPtr& version,
                                 const SlimeWriter::Publication& publication);
  // Rule 7: asks for the parts of all ranks and writes our own; joins the parts.
  Status AskForParts(const Next& next);
  Status Join(const Next& next, const std::vector<slime::VersionPart>& parts);
  void NoteWritten(WeightVersion version, bool full, uint64_t bytes);
  // Rule 5: reports the `unreported` version, and removes versions that are no longer needed.
  // Returns an error if the command failed and is required.
  Status Report();
  // An error is of the command, if that is required, or of one that a stop has ended; another is
  // logged.
  Status RunAfterWrite(WeightVersion version) const;
  // Removes what the folder need not keep; a failure is logged.
  void Retire(SlimeFolder& folder) const;

  const Options options_;
  FileSystem& files_;
  // A pool of its own, not the one that captures weights: a capture would wait for a version's
  // loop.
  ThreadPool pool_;
  // Used by the thread only.
  std::unique_ptr<Progress> progress_;
  struct Lost {
    RankStatePtr state;
    std::string to;  // lost_to of SlimeFolder::Take
  };
  Lost lost_;
  uint64_t attempts_ = 0;  // to write a version in parts
  PartsMember member_;
  std::atomic<bool> waits_{false};  // for other ranks

  mutable Mutex mutex_;
  SlimeView view_ GUARDED_BY(mutex_);  // `failures` is not used
  OfferLoop loop_;                     // last, since its thread uses all other members
};

}  // namespace dws
