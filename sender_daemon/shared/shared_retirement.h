// Removes the files that are no longer needed from a rank's folder in a shared directory.
// shared_publisher.h uses it.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/transport/shared_fs/version_catalog.h"

namespace dws {

// What has to stay in a shared directory.
struct RetirementRule {
  StreamId stream;                    // the one published now
  RankEpoch epoch;                    // of the sender that publishes
  std::optional<WeightVersion> last;  // the version it wrote last; nullopt: none yet
  size_t versions_max = 0;  // with this many newer ones a version is removed, needed or not
  std::function<bool(const StreamId&, WeightVersion)> unneeded;  // by any present receiver
};

// Removes what the rule allows; the newest anchor and all that follows it stay. Manifests are
// removed first, so that a reader sees a whole version or none. After an error it tries the rest,
// and returns the first error.
Status RetireShared(FileSystem& files, const std::string& rank_folder,
                    const shared::VersionCatalog& catalog, const RetirementRule& rule);

// Makes room for the first version of a stream: removes from each older stream what the rule allows
// there, so that its newest anchor and all that follows it stay. `place`: that of the stream
// published now. Errors as RetireShared.
Status RetireOlder(FileSystem& files, const std::string& rank_folder,
                   const shared::VersionCatalog::Place& place, const RetirementRule& rule);

// Removes the files of a version that its manifest does not name, and the folder if there is no
// manifest: what a failed write has left. Errors as FileSystem and ParseManifest.
Status RemoveUnnamed(FileSystem& files, const std::string& folder, const shared::Key& key);

// Removes what earlier senders of this rank published below `root` of views that are not in
// `views`, up to `stream`: receivers would take its newest version for the trainer's. Errors as
// RetireShared.
Status RetireViews(FileSystem& files, const std::string& root, const std::string& job_id,
                   TrainerRank rank, const std::vector<std::string>& views, const StreamId& stream);

}  // namespace dws
