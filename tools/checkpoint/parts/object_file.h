// Writes a delta object to a file. The file gets its name, and replaces an older file, when all of
// it is on the disk. Until then its parts have temporary names (NAME.frames.tmp, NAME.tmp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/delta/objects/object_writer.h"

namespace dws::checkpoint {

// Lifecycle: Create, pass the slices to writer(), then Finish. Without Finish nothing is left
// behind. Threads: one.
class ObjectFile {
 public:
  // Errors: of the file system.
  static Result<std::unique_ptr<ObjectFile>> Create(FileSystem& files, const std::string& path);
  // Returns `path` and its temporary names.
  static std::vector<std::string> PathsOf(const std::string& path);
  ~ObjectFile();
  ObjectFile(const ObjectFile&) = delete;
  ObjectFile& operator=(const ObjectFile&) = delete;

  ObjectWriter& writer() { return writer_; }
  // Returns the size of the object in bytes. Errors: of the file system.
  Result<uint64_t> Finish(DeltaManifest identity);

 private:
  ObjectFile(FileSystem& files, std::string path, std::unique_ptr<AppendFile> frames);
  Status CopyFrames(AppendFile& to);

  FileSystem& files_;
  const std::string path_;
  std::unique_ptr<AppendFile> frames_;
  ObjectWriter writer_;
};

}  // namespace dws::checkpoint
