// One file's bytes in memory: mapped, to be read or patched where they lie, or copied.
//
// A mapping is only as good as its file: if somebody truncates the file while it is mapped,
// touching the bytes that are gone ends the process (SIGBUS). Nothing here guards against that.
// Files that another machine may remove at any time, as on a shared file system, are opened as
// kCopied.
//
// Bytes that somebody writes meanwhile are seen, as far as they are written. Who must not take such
// a mixture for a state asks CheckUnchanged when it has read all it wants. A writer through a
// mapping of its own is noticed once it has called Sync here; of other programs' mappings a file
// system may tell later, or not at all.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws {

enum class FileAccess : uint8_t {
  kReadOnly,  // mapped, pages are read when they are touched
  kWritable,  // mapped and shared: what is written to the bytes is written to the file
  kCopied,    // read as a whole into memory of our own
};

// By what a file is told from others, and from what it was before.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// Where a file or folder is: `name` in the folder that is open as `folder_fd`, or AT_FDCWD. `path`
// is for messages, and for what is asked of it later.
struct FilePlace {
  int folder_fd;
  std::string name;
  std::string path;
};
// What is there now. Errors as of stat(2).
Result<FileStamp> StampAt(const FilePlace& place);
// Of an open file; `path` is for messages. FAILED_PRECONDITION: no regular file.
Result<FileStamp> StampOfFile(int fd, const std::string& path);

// Lifecycle: open until destroyed; spans of its bytes end with it, and survive a move of it.
// Threads: safe from any, as far as the bytes written by one are not touched by another.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, ... from the system; FAILED_PRECONDITION: no regular file;
  // RESOURCE_EXHAUSTED: no memory for a copy; UNAVAILABLE: it shrank while it was copied.
  static Result<MappedFile> Open(const std::string& path, FileAccess access);
  // The same of a file in a folder that is open.
  // `on_piece` is called while a copy goes on, with each kCopyPieceBytes: a sign of life.
  static constexpr size_t kCopyPieceBytes = size_t{64} << 20;
  static Result<MappedFile> OpenAt(const FilePlace& place, FileAccess access,
                                   const std::function<void()>& on_piece = {});

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  ByteSpan bytes() const { return bytes_; }
  const FileStamp& stamp() const { return opened_; }  // when it was opened
  // Of a file opened as kWritable only.
  MutableByteSpan writable() const;
  // What was written is on the disk when this returns OK, and the file's time is new: a store to a
  // mapping alone does not always make it so.
  Status Sync() const;
  // False: another file is at its path now, or none.
  bool in_place() const;
  // ABORTED: it is not in place, or was changed since it was opened.
  Status CheckUnchanged() const;

 private:
  MappedFile(std::string path, FileAccess access) : path_(std::move(path)), access_(access) {}

  std::string path_;
  FileAccess access_;
  FileStamp opened_;
  MutableByteSpan bytes_;
};

}  // namespace dws
