// A delta object as a file in the making. The name appears when all of it is on the disk, in the
// place of what was there; until then its parts have names of their own (NAME.frames.tmp,
// NAME.tmp).
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "tools/checkpoint/object_writer.h"

namespace dws::checkpoint {

// Lifecycle: made, writer() is given its slices, then Finish. Without it nothing is left behind.
// Threads: one.
class ObjectFile {
 public:
  // Errors: of the file system.
  static Result<std::unique_ptr<ObjectFile>> Create(FileSystem& files, const std::string& path);
  // `path`, and the names that it has while it is made.
  static std::vector<std::string> PathsOf(const std::string& path);
  // Removes what an ObjectFile of `path` left behind whose process was killed.
  static void RemoveLeftovers(FileSystem& files, const std::string& path);
  ~ObjectFile();
  ObjectFile(const ObjectFile&) = delete;
  ObjectFile& operator=(const ObjectFile&) = delete;

  ObjectWriter& writer() { return writer_; }
  // Bytes of the object. Errors: of the file system.
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
