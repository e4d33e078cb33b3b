// Writes the versions of one rank state into a shared directory (common/transport/shared_fs/
// LAYOUT.md): a version's files first, its manifest last.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/wall_clock.h"
#include "common/model/delta_profile.h"
#include "common/transport/shared_fs/manifest.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Lifecycle: for one rank state. Begin, WriteWelcome, then Write; each may be tried again after an
// error.
// Threads: one at a time.
class SharedWriter {
 public:
  struct Place {
    std::string root;
    std::string job_id;
    shared::Key key;
    DeltaProfile profile = DeltaProfile::kWan;  // of deltas, where a version has that encoding
  };
  // `wanted` is called repeatedly; if it returns false, a write ends with CANCELLED. `wall_clock`
  // must outlive it.
  SharedWriter(FileSystem& files, const Place& place, RankStatePtr state,
               std::function<bool()> wanted, const WallClock& wall_clock = kSystemWallClock);

  // Finds the folders' names; writes nothing. Errors as CheckFence.
  Status Begin();
  // Makes the folders and writes the welcome.
  Status WriteWelcome();
  // Looks at the welcome every kWelcomeInterval and writes it again, with a warning, if it is lost
  // or damaged: a receiver that has none cannot ask for it. In a store most looks find only whether
  // all of it is there; every kWholeLookEvery-th reads its bytes. `now` does not go back. Errors as
  // CheckFence and WriteWelcome.
  Status KeepWelcome(TimePoint now);
  // FAILED_PRECONDITION: another trainer or sender has taken over this rank, and this one must stop
  // writing. A stream ahead of the clock (clock_bound.h), which no receiver accepts, does not
  // count. Other errors as FileSystem::List.
  Status CheckFence() const;

  // All write the version's files, again if they exist already; the manifest is written last. A
  // write that fails removes the files that it has made, if the place still answers. Errors as
  // FileSystem.

  // Writes digests only, which is all that memory needs that has the version already. `version` has
  // no base.
  Result<shared::ManifestPtr> WriteDigests(const RetainedVersion& version);
  // Writes the delta: readers of its base need nothing else. `version` must have a base.
  Result<shared::ManifestPtr> WriteDelta(const RetainedVersion& version);
  // Writes full tensors too. `delta`: the result of WriteDelta, whose files are not changed, or
  // null. ABORTED: full tensors of `version` are no longer available.
  Result<shared::ManifestPtr> WriteAnchor(const RetainedVersion& version,
                                          const shared::Manifest* delta);

  const RankStatePtr& state() const { return state_; }
  const std::string& rank_folder() const { return rank_folder_; }
  const std::string& stream_folder() const { return stream_folder_; }

  static constexpr Duration kWelcomeInterval = std::chrono::seconds(10);
  static constexpr size_t kWholeLookEvery = 60;

 private:
  std::string FolderOf(const RetainedVersion& version) const;
  // NOT_FOUND, DATA_LOSS: the welcome is not what was written. Other errors: it cannot be read.
  Status CheckWelcome(bool whole) const;
  // Returns `written`. If that is an error, what is left of `version` is removed.
  Result<shared::ManifestPtr> Tidied(const RetainedVersion& version,
                                     Result<shared::ManifestPtr> written);
  // Writes description and delta. Returns a manifest that is not written yet.
  Result<shared::Manifest> WriteChange(const RetainedVersion& version);
  // Returns the error of `manifest`, if it is one.
  Result<shared::ManifestPtr> WriteManifest(const RetainedVersion& version,
                                            Result<shared::Manifest> manifest);
  Status WriteFull(WeightVersion version, const std::string& folder,
                   std::vector<shared::FileEntry>& entries);

  FileSystem& files_;
  const Place place_;
  const RankStatePtr state_;
  const std::function<bool()> wanted_;
  const WallClock* wall_clock_;
  std::string rank_folder_;
  std::string stream_folder_;
  shared::FileEntry welcome_;
  std::optional<TimePoint> look_at_;  // at the welcome; nullopt: KeepWelcome was not called yet
  size_t looks_ = 0;
};

// The folder of one rank. INVALID_ARGUMENT: the job id cannot be made a file name.
Result<std::string> SharedRankFolder(const std::string& root, const std::string& job_id,
                                     TrainerRank rank);

}  // namespace dws
