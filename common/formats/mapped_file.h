// One file's bytes in memory: mapped, to be read or patched where they lie, or copied.
//
// A mapping is only as good as its file: if somebody truncates the file while it is mapped,
// touching the bytes that are gone ends the process (SIGBUS). Nothing here guards against that.
// Files that another machine may remove at any time, as on a shared file system, are opened as
// kCopied.
#pragma once

#include <cstdint>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws {

enum class FileAccess : uint8_t {
  kReadOnly,  // mapped, pages are read when they are touched
  kWritable,  // mapped and shared: what is written to the bytes is written to the file
  kCopied,    // read as a whole into memory of our own
};

// Lifecycle: open until destroyed; spans of its bytes end with it, and survive a move of it.
// Threads: safe from any, as far as the bytes written by one are not touched by another.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, ... from the system; FAILED_PRECONDITION: no regular file;
  // RESOURCE_EXHAUSTED: no memory for a copy; UNAVAILABLE: it shrank while it was copied.
  static Result<MappedFile> Open(const std::string& path, FileAccess access);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  ByteSpan bytes() const { return bytes_; }
  // Of a file opened as kWritable only.
  MutableByteSpan writable() const;
  // What was written is on the disk when this returns OK.
  Status Sync() const;

 private:
  MappedFile(std::string path, FileAccess access) : path_(std::move(path)), access_(access) {}

  std::string path_;
  FileAccess access_;
  MutableByteSpan bytes_;
};

}  // namespace dws
