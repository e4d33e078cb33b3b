// A shared directory in addition to connections to senders: versions are announced and acknowledged
// over the connections, their bytes are read from the directory. What is late or damaged there is
// fetched from the senders.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/base/threads/pulse.h"
#include "common/transport/shared_fs/visibility_hook.h"
#include "receiver_daemon/transfer/sender_group.h"
#include "receiver_daemon/transfer/shared/shared_source.h"

namespace dws {

// Lifecycle: of its own, nothing to start. Threads: safe from any, one at a time for each rank.
class SharedBeside final : public SenderGroup {
 public:
  struct Options {
    std::string root;
    std::string job_id;
    uint32_t ranks = 1;  // trainer ranks that the directory may have
    shared::Key key;
    ThreadPool* pool = nullptr;  // not owned; never null
    Duration poll = limits::kSharedPollDefault;
    Duration visible_wait = limits::kSharedVisibleWait;
    shared::VisibilityHook before_read = {};
    bool before_read_required = false;  // while it fails, the senders are asked instead
    bool brings_full = true;            // false: full tensors have to come from the senders
    Pulse* pulse = nullptr;
  };

  // `senders` and `files` outlive it.
  SharedBeside(Options options, FileSystem& files, SenderGroup& senders);

  // Ends reads from the directory, present and future, with CANCELLED.
  void CancelFetches();

  Result<Spool> FetchObject(const SyncTarget& target, TrainerRank rank, const DeltaWant& want,
                            Spool::Options spool) override;
  Result<Description> Describe(const SyncTarget& target, TrainerRank rank) override {
    return senders_.Describe(target, rank);
  }
  Result<FetchedFull> FetchFull(const SyncTarget& target, TrainerRank rank, const FullWant& want,
                                Spool::Options spool) override;
  void Staged(const SyncTarget& target, TrainerRank rank) override {
    senders_.Staged(target, rank);
  }
  void Committed(const SyncTarget& target, TrainerRank rank,
                 const CommittedReport& report) override {
    senders_.Committed(target, rank, report);
  }
  void Rejected(const SyncTarget& target, TrainerRank rank, const Rejection& rejection) override {
    senders_.Rejected(target, rank, rejection);
  }

 private:
  struct Rank {
    std::unique_ptr<SharedSource> source;
    bool late = false;  // the last version was not there in time: not waited for
  };

  // The directory, once it has the target's version; null: it has not.
  SharedSource* Await(const SyncTarget& target, TrainerRank rank, const Spool::Options& spool);
  // Whether the senders are to be asked after this.
  bool FallsBack(const SyncTarget& target, TrainerRank rank, const Status& status) const;
  // Ended by CancelFetches. `late`: at most once a minute. False: nothing may be read, because the
  // command is required and its last run failed.
  bool RunHook(WeightVersion version, bool late, const Spool::Options& spool);
  bool Pause(Duration time);

  const Options options_;
  SenderGroup& senders_;
  std::vector<Rank> ranks_;
  Mutex hook_mutex_;  // one command at a time
  Mutex mutex_;
  CondVar cancel_changed_;
  bool cancelled_ GUARDED_BY(mutex_) = false;
  TimePoint hook_not_before_ GUARDED_BY(mutex_);  // where the directory is late
  bool hook_failed_ GUARDED_BY(mutex_) = false;   // its last run
};

}  // namespace dws
