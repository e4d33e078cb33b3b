// Publishes versions to a shared directory, beside announcing them: on a thread of its own, from
// what the log retains. It holds up nobody, and what it cannot do now it tries again.
//
//   1. each version is written after the one before it, with its delta
//   2. the first is an anchor, with full tensors; so is one when --shared-dir-anchor-every versions
//      or more bytes of deltas than the model has followed the last anchor, when the log no longer
//      has the delta that would lead on, and when a receiver could not read what is there
//      (tried again until there is one, but not for every version of a receiver that never can).
//      Full tensors take long: they are added to a version that is there with its delta, and
//      newer deltas are written meanwhile, so they hold up nobody who follows
//   3. what comes before the newest anchor goes when no receiver needs it (which a sender that has
//      just started does not know), or `versions_max` newer ones are there, whether versions could
//      be written or not; of older streams everything goes once this one has an anchor
//   4. reports of receivers are read every kOfferPoll, sooner while one has yet to commit what was
//      written last, before each version, and while full tensors are written
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/transport/shared_fs/version_catalog.h"
#include "common/transport/shared_fs/visibility_hook.h"
#include "sender_daemon/publish/offer_loop.h"
#include "sender_daemon/shared/shared_receivers.h"
#include "sender_daemon/shared/shared_view.h"
#include "sender_daemon/shared/shared_writer.h"

namespace dws {

// What --shared-dir and its companions say.
struct SharedDirOptions {
  std::string root;  // empty: none
  std::string key_file;
  size_t anchor_every = 32;
  std::string after_write;  // a command; empty: none
};

// Lifecycle: Start, then Stop or the destructor. Threads: safe from any.
class SharedPublisher {
 public:
  struct Options {
    SharedDirOptions dir;
    std::string job_id;
    TrainerRank trainer_rank;
    shared::Key key;
    shared::VisibilityHook after_write;
    size_t versions_max = 64;
    std::chrono::milliseconds retry_delay = limits::kOfferRetryDelayMin;  // doubles
  };

  // `files` and `hub` outlive it.
  SharedPublisher(Options options, FileSystem& files, ReceiverHub& hub,
                  SharedReceivers::OnRejected on_rejected);
  ~SharedPublisher();

  void Start() { loop_.Start(); }
  // There may be a new version in that state. Never blocks.
  void Offer(RankStatePtr state);
  // Everything offered is in the directory, or was tried and failed. Full tensors that are to be
  // added to it do not count.
  bool settled() const;
  void Stop();

  SharedView view() const;

  // One round of its work, for tests that have no thread: true when there is more to do.
  Result<bool> Step() { return loop_.StepOnce(); }

 private:
  struct At {
    RankStatePtr state;  // null: none
    std::optional<WeightVersion> version;
    friend bool operator==(const At&, const At&) = default;
  };
  // Full tensors are to be added to this version, which is there as `delta` says.
  struct Owed {
    RetainedVersionPtr version;
    shared::ManifestPtr delta;
  };
  // Where the state that is published now stands.
  struct Progress {
    explicit Progress(SharedWriter made) : writer(std::move(made)) {}
    SharedWriter writer;
    bool begun = false;
    std::optional<shared::VersionCatalog> catalog;  // what is there, once begun
    std::optional<WeightVersion> last;              // written
    std::optional<Owed> owed;
    size_t deltas = 0;  // since the last anchor, or what is to be one
    uint64_t delta_bytes = 0;
    std::optional<WeightVersion> full_gone;  // a repair came too late for its full tensors
  };
  // What lies there is damaged, or a file of it is lost: the newest version is written whole and as
  // an anchor, again if need be. Nothing before it is needed then.
  // A receiver whose own disk is bad finds damage in every version: not too often.
  struct Repair {
    static constexpr Duration kDelayMin = std::chrono::seconds(10);  // doubles
    static constexpr Duration kDelayMax = std::chrono::minutes(10);
    bool due = false;            // until an anchor was written
    Duration delay = kDelayMin;  // after the next one
    TimePoint not_before;
  };

  Result<bool> Work(const RankStatePtr& offered);
  Status Adopt(RankStatePtr state);
  Status Begin();
  // 1 and 2: writes what is next. False: nothing is.
  Result<bool> WriteNext();
  // After the last. As DeltaLog::Chain: the log may have no delta that leads on.
  Result<RetainedVersionPtr> NextInChain(const RetainedVersion& newest) const;
  Status WriteDelta(const RetainedVersionPtr& version);
  // `delta`: as SharedWriter.
  Status WriteAnchor(const RetainedVersionPtr& version, const shared::ManifestPtr& delta);
  void NoteWritten(const RetainedVersion& version, uint64_t bytes, bool anchor);
  void ReadReports();
  // While full tensors are written; false: the sender shuts down.
  bool Meanwhile();
  bool RepairDue();
  bool AwaitsReport() const;  // 4
  void NoteAnchor();
  void Retire();  // 3

  const Options options_;
  FileSystem& files_;
  ReceiverHub& hub_;
  const SharedReceivers::OnRejected on_rejected_;
  // Of the thread.
  std::optional<SharedReceivers> receivers_;
  std::unique_ptr<Progress> progress_;
  Repair repair_;
  TimePoint reports_due_;  // while full tensors are written

  mutable Mutex mutex_;
  SharedView view_ GUARDED_BY(mutex_);  // without failures and trouble
  At offered_ GUARDED_BY(mutex_);       // the newest when it was offered
  At written_ GUARDED_BY(mutex_);       // the newest
  OfferLoop loop_;                      // last: its thread uses all the rest
};

}  // namespace dws
