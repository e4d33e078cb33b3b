// What an engine has loaded and runs with, in CHECKPOINT/.weight_sync/dws_engine: a receiver
// that starts again need not pause an engine that has its weights already.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/base/file_system.h"
#include "common/base/status.h"

namespace dws {

// A version of the checkpoint. `contents` is equal for equal weights (LocalCheckpoint::contents).
struct CheckpointVersion {
  uint64_t version = 0;
  std::string contents;

  friend bool operator==(const CheckpointVersion&, const CheckpointVersion&) = default;
};

// Threads: one. `files` must outlive it.
class LoadedRecord {
 public:
  // `engine`: its URL.
  LoadedRecord(FileSystem& files, const std::string& checkpoint_folder, std::string engine);

  // nullopt: none of this engine, or it cannot be read.
  std::optional<CheckpointVersion> Read() const;
  // Without the record the next start loads again, so a failure is only logged.
  void Write(const CheckpointVersion& loaded);
  // Called before the engine is paused. Errors of the disk.
  Status Remove();

 private:
  FileSystem& files_;
  const std::string path_;
  const std::string engine_;
};

}  // namespace dws
