// Reads the files of a shared directory into what the pipeline stages: deltas, composed if there
// are several (over the engine's weights if their blocks need those), and full tensors of an
// anchor, to which the deltas after it are applied. Used by shared_source.h.
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

// Where the versions' folders are.
struct SharedPlace {
  FileSystem& files;
  ThreadPool& pool;  // for composing
  const std::string& stream_folder;
  WeightVersion newest_anchor;  // the sender may remove older versions
  // Memory for what is read ahead of a transfer where the files are far away; of a delta at most an
  // eighth of the spool's, which it is taken from. 0: nothing is read ahead.
  uint64_t ahead_bytes_max = 0;

  std::string FolderOf(const shared::Manifest& manifest) const;
  // What a missing file of that version means.
  Status Explain(const Status& status, const shared::Manifest& manifest) const;
};

// Errors of all: NOT_FOUND: a file is missing. ABORTED: a file is missing, and its version may have
// been retired since its manifest was read. DATA_LOSS: a file is damaged or makes no sense.
// CANCELLED: the bytes are no longer wanted. Else as FileSystem and Spool.

// Reads the deltas of `chain`. One delta: the part of its object with `want.slices`, read only from
// the pieces of the file that have something of it. Several deltas: the object that they compose;
// ABORTED: a third of the spool's memory does not hold them, or what they compose, or they need
// `want.old` and there is none.
Result<Spool> ReadSharedObject(const SharedPlace& place, std::span<const shared::ManifestPtr> chain,
                               const RankLayout& layout, const DeltaWant& want,
                               Spool::Options options);

// Reads full tensors at the end of `path`, for the slices that are incomplete in `assembly`. If
// `wanted` returns false, this ends with CANCELLED.
Status ReadSharedFull(const SharedPlace& place, const shared::FullPath& path,
                      const std::function<bool()>& wanted, FullAssembly& assembly);

}  // namespace dws
