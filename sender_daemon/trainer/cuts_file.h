// The cuts that a sender has made in a stream, kept over its restarts: a sender that opened the
// stream with the declared layout again would take cuts back from engines that run.
#pragma once

#include <string>
#include <utility>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/model/refinement.h"
#include "common/model/stream_id.h"

namespace dws {

// Threads: one at a time.
class CutsFile {
 public:
  // `files` must outlive it.
  CutsFile(FileSystem& files, const std::string& state_folder)
      : files_(files), path_(state_folder + "/layout.cuts") {}

  // Replaces the file's contents; durable after OK. Errors of FileSystem::ReplaceFile.
  Status Save(const StreamId& stream, const CutWishes& cuts);
  // Returns the cuts of `stream`; none if the file is missing, of another stream, or damaged (which
  // is logged): then receivers ask again.
  CutWishes Load(const StreamId& stream) const;

 private:
  FileSystem& files_;
  const std::string path_;
};

}  // namespace dws
