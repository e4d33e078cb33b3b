// A shared directory as a source beside connections to senders: versions are announced and
// acknowledged over the connections, their bytes are read from the directory if they are there in
// time.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/mutex.h"
#include "common/sources/source.h"
#include "common/transport/shared_fs/visibility_hook.h"
#include "receiver_daemon/transfer/shared/failure_pause.h"
#include "receiver_daemon/transfer/shared/shared_source.h"

namespace dws {

// Lifecycle: of its own, nothing to start. Threads: safe from any, one at a time for each rank.
class SharedDirSource final : public Source {
 public:
  struct Options {
    std::string root;
    std::string job_id;
    std::string view = {};  // empty: the trainer's own tensors
    uint32_t ranks = 1;     // trainer ranks that the directory may have
    shared::Key key;
    ThreadPool* pool = nullptr;  // not owned; never null
    Duration poll = limits::kSharedPollDefault;
    Duration visible_wait = limits::kSharedVisibleWait;
    shared::VisibilityHook before_read = {};
    bool before_read_required = false;  // while it fails, nothing is read here
    std::string name = std::string(kSharedDirName);
    uint64_t ahead_bytes_max = 0;  // see SharedPlace
    bool is_remote = false;        // see SharedSource
  };

  // `files` and `cancellation` outlive it; `cancellation` ends reads, present and future.
  SharedDirSource(Options options, FileSystem& files, Cancellation& cancellation);

  std::string_view name() const override { return options_.name; }
  bool brings(Content) const override { return true; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool) override;
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;

 private:
  struct Rank {
    std::unique_ptr<SharedSource> source;
    bool late = false;  // the last version was not there in time: the next is not waited for
  };

  // Returns whether a caller still waits for the bytes.
  using Wanted = std::function<bool()>;
  // Waits until the directory has the target's version. UNAVAILABLE: it did not get it in time, or
  // is left alone because it failed. ABORTED: it has newer ones only.
  Result<SharedSource*> Await(const Piece& piece, const Wanted& wanted);
  // Notes how a call ended that began at `begun`.
  void Note(const Status& status, TimePoint begun);
  // Runs the command; if `late`, at most once a minute. Returns false if nothing may be read,
  // because the command is required and its last run failed.
  bool RunHook(WeightVersion version, bool late, const Wanted& wanted);

  const Options options_;
  Cancellation& cancellation_;
  std::vector<Rank> ranks_;
  FailurePause pause_;
  Mutex hook_mutex_;  // one command at a time
  Mutex mutex_;
  TimePoint hook_not_before_ GUARDED_BY(mutex_);  // where the directory is late
  bool hook_failed_ GUARDED_BY(mutex_) = false;   // its last run
};

}  // namespace dws
