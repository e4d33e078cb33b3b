// Publishes versions to a shared directory, in addition to announcing them, on its own thread, from
// what the log retains. Never blocks publishing; retries failures.
//
//   1. Each version is written after the one before it, with its delta.
//   2. The first version is an anchor, with full tensors. Another anchor is written when
//      --shared-dir-anchor-every versions or more bytes of deltas than the model has followed the
//      last one, when the log no longer has the next delta, and when receivers cannot read what is
//      there or reach the newest version (retried until an anchor is written, but not for every
//      version). With --shared-dir-first=base a stream begins with the digests of its first version
//      only, if the log still has that, and an anchor is also written when a receiver asks for it,
//      because its memory does not have these digests: one anchor serves all receivers that ask
//      before it is written. Full tensors take long to write: they are added to a version that
//      already has its delta, and newer deltas are written meanwhile, so that receivers that follow
//      do not wait.
//   3. Versions before the newest anchor are removed once no receiver needs them (a sender that has
//      just started does not know this), or once `versions_max` newer ones exist; if writing fails,
//      even that of the first version, those of older streams too. Older streams are removed
//      completely once this one has an anchor. A sender that was replaced removes nothing.
//   4. The command --shared-after-write runs after each version. If it is required, a version for
//      which it fails is not reported as published: the command runs again until it succeeds, and
//      until then nothing else is written or removed.
//   5. Reports of receivers are read every kOfferPoll, sooner while a receiver has not committed
//      the version written last, before each version, and while full tensors are written. The
//      welcome is looked at with them, as SharedWriter::KeepWelcome says.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/delta_profile.h"
#include "common/transport/s3/store.h"
#include "common/transport/shared_fs/visibility_hook.h"
#include "sender_daemon/publish/offer_loop.h"
#include "sender_daemon/shared/reach_watch.h"
#include "sender_daemon/shared/shared_receivers.h"
#include "sender_daemon/shared/shared_writer.h"

namespace dws {

// The options --shared-dir and --shared-dir-*.
struct SharedDirOptions {
  std::string root;  // empty: none
  std::string key_file;
  size_t anchor_every = 32;
  DeltaProfile profile = DeltaProfile::kWan;  // of deltas, where a version has that encoding
  bool from_base = false;                     // rule 2: a stream begins with digests only
  std::vector<std::string> views;             // names; published there, too
  StoreOptions store;                         // of a root that is one
  std::string after_write;                    // a command; empty: none
  bool after_write_required = false;

  // Returns whether every version is also to be encoded as wan.
  bool WantsWan() const { return !root.empty() && profile == DeltaProfile::kWan; }
};

// What status and metrics show.
struct SharedView {
  std::string folder;                   // empty: none
  std::optional<WeightVersion> newest;  // in the directory, of the current stream
  uint64_t deltas = 0;                  // written with their delta only
  uint64_t anchors = 0;                 // written as one, or made of a version that had its delta
  uint64_t bases = 0;                   // written with their digests only
  uint64_t bytes = 0;                   // of all
  uint64_t failures = 0;                // attempts that failed
  size_t receivers = 0;                 // present according to their reports
};

// Lifecycle: Start, then Stop or the destructor. Threads: safe from any.
class SharedPublisher {
 public:
  struct Options {
    SharedDirOptions dir;
    std::string job_id;
    TrainerRank trainer_rank;
    std::string view = {};  // that is offered; empty: the trainer's own tensors
    shared::Key key;
    shared::VisibilityHook after_write;
    size_t versions_max = 64;
    std::chrono::milliseconds retry_delay = limits::kOfferRetryDelayMin;  // doubles
    // Called with the rank's folder before a stream's first version is written; may be empty.
    std::function<Status(const std::string& folder)> clean;
  };

  // `files` and `hub` must outlive it.
  SharedPublisher(Options options, FileSystem& files, ReceiverHub& hub,
                  SharedReceivers::OnRejected on_rejected);
  ~SharedPublisher();

  void Start() { loop_.Start(); }
  // `state` may have a new version. Never blocks.
  void Offer(RankStatePtr state);
  // Everything offered is in the directory, or was tried and failed. Full tensors that are still to
  // be added do not count.
  bool settled() const;
  std::optional<PlaceFailure> failure() const { return loop_.failure(); }
  void Stop();

  SharedView view() const;

  // Runs one round, for tests without the thread. Returns true if there is more to do.
  Result<bool> Step() { return loop_.StepOnce(); }

 private:
  struct At {
    RankStatePtr state;  // null: none
    std::optional<WeightVersion> version;
    friend bool operator==(const At&, const At&) = default;
  };
  // A version whose full tensors still have to be added; `delta`: its manifest, already written.
  struct PendingFull {
    RetainedVersionPtr version;
    shared::ManifestPtr delta;
  };
  // A version that is written, but the command has not run for it, or has failed although it is
  // required.
  struct Unreported {
    WeightVersion version;
    uint64_t bytes = 0;
    uint64_t SharedView::*kind = nullptr;  // the counter it adds to
  };
  // Progress of the state that is published now.
  struct Progress {
    explicit Progress(SharedWriter made) : writer(std::move(made)) {}
    SharedWriter writer;
    bool begun = false;
    bool views_retired = false;
    std::optional<shared::VersionCatalog> catalog;  // the contents of the directory; set by Begin
    ReachWatch reach;
    std::optional<WeightVersion> last;   // written
    std::vector<Unreported> unreported;  // in the order of writing
    std::optional<PendingFull> pending_full;
    size_t deltas = 0;  // since the last anchor or pending_full
    uint64_t delta_bytes = 0;
    std::optional<WeightVersion> full_gone;  // a repair could not read its full tensors in time
    // Newest version when an anchor was completed last: what leads to it leads to all up to this.
    std::optional<WeightVersion> reachable;
  };
  // A repair: the directory has damaged data, or lacks a file, or full tensors that a receiver asks
  // for. So the newest version is written as an anchor, even if it is there already. Repairs are
  // kept apart in time: a receiver whose own disk is bad finds damage in every version.
  struct Repair {
    static constexpr Duration kDelayMin = std::chrono::seconds(10);  // doubles
    static constexpr Duration kDelayMax = std::chrono::minutes(10);
    bool due = false;            // until an anchor is written
    std::string reason;          // to log then; empty: another anchor is as good
    bool asked = false;          // by a receiver
    Duration delay = kDelayMin;  // to wait after the next repair
    TimePoint not_before;
  };

  Result<bool> Work(const RankStatePtr& offered);
  Status Adopt(RankStatePtr state);
  Status Begin();
  Result<bool> WriteNext();  // rules 1 and 2; false: there is nothing to write
  // The version after the last written. Errors as DeltaLog::Chain: the log may lack the next delta.
  Result<RetainedVersionPtr> NextInChain(const RetainedVersion& newest) const;
  // Returns whether the stream should begin in the directory with the digests of `first`, the first
  // version of the log: no receiver has those of a later one.
  Result<bool> BeginsWith(const RetainedVersionPtr& first);
  Status WriteDigests(const RetainedVersion& version);
  Status WriteDelta(const RetainedVersionPtr& version);
  // `delta`: as in SharedWriter.
  Status WriteAnchor(const RetainedVersionPtr& version, const shared::ManifestPtr& delta);
  // Errors as Report.
  Status NoteWritten(const RetainedVersion& version, uint64_t bytes, uint64_t SharedView::*kind);
  // Rule 4: reports the `unreported` versions. An error: the command failed and is required.
  Status Report();
  void ReadReports();
  // Runs while full tensors are written. False: the sender shuts down.
  bool Meanwhile();
  bool FullAsked() const;  // by a receiver that cannot reach a version without full tensors
  bool RepairDue();
  bool AwaitsReport() const;  // rule 5
  void NoteAnchor(WeightVersion version);
  void Retire(bool failed);  // rule 3; `failed`: writing has

  const Options options_;
  FileSystem& files_;
  ReceiverHub& hub_;
  const SharedReceivers::OnRejected on_rejected_;
  // Used by the thread only.
  std::optional<SharedReceivers> receivers_;
  std::unique_ptr<Progress> progress_;
  Repair repair_;
  TimePoint reports_due_;  // while full tensors are written

  mutable Mutex mutex_;
  SharedView view_ GUARDED_BY(mutex_);                          // `failures` is not used
  At offered_ GUARDED_BY(mutex_), written_ GUARDED_BY(mutex_);  // newest versions
  OfferLoop loop_;  // last, since its thread uses all other members
};

}  // namespace dws
