// Applies the next version in a folder to a local checkpoint, as long as the folder is of the run
// whose versions the checkpoint has (slime_delta/local/run_check.h).
#pragma once

#include <cstdint>
#include <filesystem>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/formats/slime_delta/local/apply.h"

namespace dws {

// A version that is there in part.
struct IncompleteVersion {
  uint64_t version = 0;
  TimePoint since;        // none of its files has appeared, gone or changed since
  bool has_files = true;  // false: its folder is empty, as some writers make it long before
  std::string missing;    // in words, with the path

  friend bool operator==(const IncompleteVersion&, const IncompleteVersion&) = default;
};

// Remembers which versions were refused or incomplete. Threads: one.
class VersionApplier {
 public:
  // `files` and `clock` must outlive it. `on_begin` is called before a version is applied. A
  // version that is incomplete for longer than `incomplete_max`, or than some minutes, is an error.
  VersionApplier(std::string folder, FileSystem& files, const Clock& clock, Duration incomplete_max,
                 std::function<void()> on_begin);

  // Returns the versions in the folder, ascending. FAILED_PRECONDITION: the folder has only version
  // folders whose names have no numbers.
  Result<std::vector<uint64_t>> List();
  uint64_t newest() const { return newest_; }  // at the last List; 0: none

  // Applies the version after the local one or, if that is gone or refused, the newest full
  // checkpoint. Returns nullopt if there is no next version, or if it is not complete yet
  // (incomplete()). UNAVAILABLE: it has been incomplete for too long. FAILED_PRECONDITION: the
  // folder is of another run of the trainer, the version after the local one is gone, or nothing
  // proves its base. Other errors as LocalCheckpoint::Apply. A refused version is read again when
  // its index has changed, or after ten times as long as reading it took.
  Result<std::optional<slime::ApplyReport>> ApplyNext(slime::LocalCheckpoint& local);
  // Returns whether the last ApplyNext was refused because nothing proves the base of the next
  // version.
  bool unproved() const { return unproved_; }
  // What the last ApplyNext waits for.
  const std::optional<IncompleteVersion>& incomplete() const { return incomplete_; }
  // The checkpoint was replaced by another: forgets what was refused or incomplete.
  void Forget();

 private:
  using Time = std::optional<std::filesystem::file_time_type>;
  using Applied = std::optional<slime::ApplyReport>;

  std::string PathOf(uint64_t version) const;
  // When the file that publishes `version` was written; nullopt: there is none.
  Time IndexTime(uint64_t version) const;
  // Returns the newest full checkpoint of `versions` after `after` whose index fits `local`, if
  // there is one.
  std::optional<uint64_t> NewestFull(const slime::LocalCheckpoint& local,
                                     const std::vector<uint64_t>& versions, uint64_t after) const;
  Result<Applied> ApplyFollowing(slime::LocalCheckpoint& local,
                                 const std::vector<uint64_t>& versions);
  Result<Applied> Apply(slime::LocalCheckpoint& local, uint64_t version);
  // For a version that a look which began at `begin` found UNAVAILABLE, with `status`: nullopt, or
  // `status` once it has been so for too long.
  Result<Applied> Await(uint64_t version, TimePoint begin, const Status& status);
  // The files of a version, as far as they can be seen.
  using Seen = std::map<std::string, std::optional<FileStamp>>;
  Seen FilesOf(uint64_t version) const;
  // Calls `work`, which reads `version`; `written` is the time of its index. If that version was
  // refused recently, returns its error instead.
  Status UnlessRefused(uint64_t version, const Time& written, const std::function<Status()>& work);

  // Returns false if a full checkpoint without an index may still be being written. Such a version
  // has no file that is written last, so it counts as complete when its file has not changed for
  // some seconds.
  Result<bool> Settled(uint64_t version);

  struct Refusal {
    Time index_time;
    TimePoint until;
    Status status;
    bool unproved = false;
  };

  const std::string folder_;
  FileSystem& files_;
  const Clock& clock_;
  const Duration incomplete_max_;
  const std::function<void()> on_begin_;
  uint64_t newest_ = 0;
  bool unproved_ = false;
  std::optional<IncompleteVersion> incomplete_;
  std::optional<IncompleteVersion> incomplete_before_;  // at the look before
  Seen seen_;                                           // files of that version
  std::map<uint64_t, Refusal> refusals_;                // by version
  struct Unindexed {
    uint64_t version = 0;
    FileStamp stamp;
    TimePoint since;
  };
  std::optional<Unindexed> unindexed_;  // as last seen
};

}  // namespace dws
