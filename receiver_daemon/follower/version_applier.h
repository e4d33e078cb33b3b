// Applies to a local checkpoint what comes next in a folder of versions, as long as the folder is
// of the run whose versions the checkpoint has (slime_delta/run_check.h).
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
#include "common/formats/slime_delta/apply.h"

namespace dws {

// Threads: one.
class VersionApplier {
 public:
  // `files` and `clock` outlive it. `on_begin` is called when a version is begun.
  VersionApplier(std::string folder, FileSystem& files, const Clock& clock,
                 std::function<void()> on_begin);

  // Those in the folder, ascending.
  Result<std::vector<uint64_t>> List();
  uint64_t newest() const { return newest_; }  // when it was listed last; 0: none

  // Applies what comes next: the version after the local one, or, where that is gone or refused,
  // the newest full checkpoint. nullopt: nothing does, or not all of it is there yet. UNAVAILABLE:
  // that has been so for minutes. FAILED_PRECONDITION: of another run of the trainer, or its
  // predecessor is gone. Others as of LocalCheckpoint::Apply. What was refused is looked into again
  // when its index is another, or after ten times what it took.
  Result<std::optional<slime::ApplyReport>> ApplyNext(slime::LocalCheckpoint& local);
  // Another checkpoint is in the place of the one that versions were applied to.
  void Forget();

 private:
  using Time = std::optional<std::filesystem::file_time_type>;
  using Applied = std::optional<slime::ApplyReport>;

  std::string PathOf(uint64_t version) const;
  // When its index was written; nullopt: there is none.
  Time IndexTime(uint64_t version) const;
  // The newest after `after`, if any.
  std::optional<uint64_t> NewestFull(const std::vector<uint64_t>& versions, uint64_t after) const;
  Result<Applied> ApplyFollowing(slime::LocalCheckpoint& local,
                                 const std::vector<uint64_t>& versions);
  Result<Applied> Apply(slime::LocalCheckpoint& local, uint64_t version);
  // What `status`, UNAVAILABLE, of a version looked at from `begin` on comes to: nothing yet, or
  // that it has been so for minutes.
  Result<Applied> Await(uint64_t version, TimePoint begin, const Status& status);
  // Does `work`, which reads `version`, whose index was `written` then; unless it has been refused
  // lately: then the error of then.
  Status UnlessRefused(uint64_t version, const Time& written, const std::function<Status()>& work);

  struct Refusal {
    Time index_time;
    TimePoint until;
    Status status;
  };

  const std::string folder_;
  FileSystem& files_;
  const Clock& clock_;
  const std::function<void()> on_begin_;
  uint64_t newest_ = 0;
  std::map<uint64_t, TimePoint> unpublished_;  // versions, and since when
  std::map<uint64_t, Refusal> refusals_;       // by version
};

}  // namespace dws
