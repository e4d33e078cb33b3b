// The present contents of one rank's folder in a shared directory: its streams, and the versions of
// one of them, which are read again when they change. Both sides use it: receivers to follow, a
// sender to find what exists, who else writes, and what may be removed.
#pragma once

#include <functional>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/transport/shared_fs/version_set.h"

namespace dws::shared {

// The roots (names.h) of all views below `root`. Empty if the folder does not exist (yet).
Result<std::vector<std::string>> ListViewRoots(FileSystem& files, const std::string& root);

// The streams in a rank's folder, ascending. Empty if the folder does not exist (yet).
Result<std::vector<StreamId>> ListStreams(FileSystem& files, const std::string& rank_folder);
// The version folders of a stream, with a manifest or without, ascending. Empty as above.
Result<std::vector<VersionName>> ListVersions(FileSystem& files, const std::string& stream_folder);

// Lifecycle: call Refresh repeatedly. Threads: one at a time.
class VersionCatalog {
 public:
  struct Place {
    std::string job_id;
    TrainerRank rank;
    StreamId stream;
    std::string folder;  // of the stream
    Key key;
  };

  VersionCatalog(FileSystem& files, Place place) : files_(files), place_(std::move(place)) {}

  // Looks for new and removed versions, and looks again at versions that could not be reached. A
  // folder without a manifest is not a version (yet). Errors are those of reading the folder, and
  // of manifests where these do not come in time, or three in a row cannot be reached; known
  // versions stay known. A manifest that cannot be used is left out; trouble() says why until it
  // can be used or is removed. Calls `on_read` after each manifest: there may be many.
  Status Refresh(const std::function<void()>& on_read = [] {});
  // The known facts about `version` may be wrong: read it again.
  void Forget(WeightVersion version);

  const VersionSet& versions() const { return versions_; }
  const Status& trouble() const { return trouble_; }
  // Returns whether the place has answered for each manifest that is not known; if not, it may be
  // there and whole.
  bool all_answered() const { return all_answered_; }
  const Place& place() const { return place_; }

 private:
  Result<ManifestPtr> ReadManifest(VersionName name) const;

  FileSystem& files_;
  const Place place_;
  VersionSet versions_;
  Status trouble_;
  bool all_answered_ = true;
};

}  // namespace dws::shared
