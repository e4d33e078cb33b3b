// What may go from a rank's folder in a shared directory, and its going. For shared_publisher.h.
#pragma once

#include <functional>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/transport/shared_fs/version_catalog.h"

namespace dws {

struct RetirementRule {
  StreamId stream;                              // the one published now
  RankEpoch epoch;                              // of who publishes
  WeightVersion last;                           // written by it
  size_t versions_max = 0;                      // newer ones: then a version may go, needed or not
  std::function<bool(WeightVersion)> unneeded;  // by all receivers that are present
};

// Removes what the rule lets go; the newest anchor and all that follows it stay. Manifests go
// first: a reader sees a version or none. The first error of those that occurred, after all was
// tried.
Status RetireShared(FileSystem& files, const std::string& rank_folder,
                    const shared::VersionCatalog& catalog, const RetirementRule& rule);

}  // namespace dws
