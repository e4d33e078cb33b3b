// One file's bytes: mapped for reading or for patching in place, or only open for ReadAt.
//
// If another process truncates the file while it is mapped, or a write to it finds the disk full,
// bytes are missing. Then a kWritable file has zeros from the first missing page on, and
// CheckIntact and Sync fail; call one of them before you record anything that was read. With
// kReadOnly the process ends, with a line that names the file (mapping_guard.h). ReadAt returns an
// error: use kUnmapped for files that another machine may cut at any time, as on a shared file
// system.
//
// Pages of a mapping that were touched count as memory of the process until they are released.
//
// If another process writes the file meanwhile, a reader sees a mixture of old and new bytes. To
// detect that, call CheckUnchanged after the last read. It notices a writer through a MappedFile
// once the writer has called Sync. Writes through mappings of other programs may change the file's
// time later, or not at all.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/formats/mapping_guard.h"

namespace dws {

enum class FileAccess : uint8_t {
  kReadOnly,  // mapped; pages are read on first access
  kWritable,  // mapped and shared: a write to the bytes is a write to the file
  kUnmapped,  // open for ReadAt; bytes() is empty
};

// Identifies a file, and shows whether it has changed.
struct FileStamp {
  uint64_t device = 0;
  uint64_t inode = 0;
  uint64_t size_bytes = 0;
  int64_t modified_ns = 0;
  int64_t changed_ns = 0;

  friend bool operator==(const FileStamp&, const FileStamp&) = default;
};

// The place of a file or folder: `name` in the folder that is open as `folder_fd`, or AT_FDCWD.
// `path` is for messages and for later checks.
struct FilePlace {
  int folder_fd;
  std::string name;
  std::string path;
};
// Returns the stamp of the file or folder that is there now. Errors of stat(2).
Result<FileStamp> StampAt(const FilePlace& place);
// The stamp of an open file; `path` is for messages. FAILED_PRECONDITION: not a regular file.
Result<FileStamp> StampOfFile(int fd, const std::string& path);

// The bytes of one file. Lifecycle: open until destroyed; spans of its bytes become invalid then,
// but stay valid when it is moved. Threads: safe from any, if no thread accesses bytes while
// another writes them.
class MappedFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, ... from the system; FAILED_PRECONDITION: not a regular file.
  static Result<MappedFile> Open(const std::string& path, FileAccess access);
  // Like Open, for a file in an open folder.
  static Result<MappedFile> OpenAt(const FilePlace& place, FileAccess access);

  MappedFile(MappedFile&& other) noexcept;
  MappedFile& operator=(MappedFile&& other) noexcept;
  ~MappedFile();

  const std::string& path() const { return path_; }
  ByteSpan bytes() const { return bytes_; }
  const FileStamp& stamp() const { return opened_; }  // as of Open
  uint64_t size_bytes() const { return opened_.size_bytes; }
  // Only for a kUnmapped file: fills `to` with the bytes from `offset` on. UNAVAILABLE: the file
  // has become shorter.
  Status ReadAt(uint64_t offset, MutableByteSpan to) const;
  // Only for a file opened as kWritable.
  MutableByteSpan writable() const;
  // Releases the mapped pages of these bytes from this process's memory; what was written to them
  // stays in the file. They are read again on the next access. A write to a page that is not mapped
  // is also much cheaper than one to a page that was only read before.
  void Release(uint64_t offset, uint64_t size_bytes) const;
  // Only for a kWritable file: begins to write these bytes to the disk, so that a later Sync has
  // less to wait for. A hint: errors are found by Sync.
  void StartWriteback(uint64_t offset, uint64_t size_bytes) const;
  // DATA_LOSS: bytes of the file were missing when they were read or written.
  Status CheckIntact() const;
  // Fails as CheckIntact does. After OK, all writes are on the disk and the file's time is updated.
  // (A store to a mapping alone does not always update the time.)
  Status Sync() const;
  // False: the path now leads to another file, to none, or to one of another size.
  bool in_place() const;
  // ABORTED: the file is not in place, or has changed since it was opened.
  Status CheckUnchanged() const;

 private:
  MappedFile(std::string path, FileAccess access) : path_(std::move(path)), access_(access) {}

  std::string path_;
  FileAccess access_;
  FileStamp opened_;
  UniqueFd fd_;  // of a kWritable or kUnmapped file
  MutableByteSpan bytes_;
  std::unique_ptr<MappingGuard> guard_;  // null: nothing is mapped
};

}  // namespace dws
