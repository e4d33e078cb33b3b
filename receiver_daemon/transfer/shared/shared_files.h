// From the files of a shared directory to what the pipeline stages: deltas, composed where there
// are several, over the engine's weights if their blocks need those, and full tensors of an anchor
// brought on by the deltas after it. For shared_source.h.
#pragma once

#include <functional>
#include <span>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/model/layout.h"
#include "common/sources/source.h"
#include "common/transport/shared_fs/version_set.h"

namespace dws {

// Where manifests' folders are.
struct SharedPlace {
  FileSystem& files;
  ThreadPool& pool;  // composes
  const std::string& stream_folder;
  WeightVersion newest_anchor;  // what is before it goes when the sender likes

  std::string FolderOf(const shared::Manifest& manifest) const;
  // What a missing file of that version means.
  Status Explain(const Status& status, const shared::Manifest& manifest) const;
};

// All errors: NOT_FOUND: a file is missing; ABORTED: one of a version that may have been retired
// since its manifest was read. DATA_LOSS: one is damaged or makes no sense. CANCELLED:
// the spool is not wanted. Else as FileSystem and Spool.

// Of one delta the part with `want.slices` of its object, read from those pieces of the file alone
// that have something of it; of several the object that they compose (ABORTED: a third of the
// spool's memory does not hold them, or what they compose, or they need `want.old` and there is
// none).
Result<Spool> ReadSharedObject(const SharedPlace& place, std::span<const shared::ManifestPtr> chain,
                               const RankLayout& layout, const DeltaWant& want,
                               Spool::Options options);

// Full tensors at the end of `path`, of the slices of which something is missing in `assembly`.
// `wanted`: false ends it with CANCELLED.
Status ReadSharedFull(const SharedPlace& place, const shared::FullPath& path,
                      const std::function<bool()>& wanted, FullAssembly& assembly);

}  // namespace dws
