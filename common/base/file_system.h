// The seam between DWS and the disk. Production uses PosixFileSystem; tests put a fault-injecting
// one (tests/fakes/fault_file_system.h) in front of it.
//
// Paths are absolute, or relative to the working directory. All functions map errno to a code with
// ErrnoError and name the path: NOT_FOUND, RESOURCE_EXHAUSTED (disk full), PERMISSION_DENIED,
// FAILED_PRECONDITION (read-only), DATA_LOSS (EIO), UNAVAILABLE (most others); see status.cc.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"

namespace dws {

// A file open for appending. The destructor closes it and does not sync. Threads: one at a time.
class AppendFile {
 public:
  virtual ~AppendFile() = default;
  // Appends all of `bytes`. After an error any prefix of them may be in the file.
  virtual Status Append(ByteSpan bytes) = 0;
  // When this returns OK, everything appended is on the disk. After an error, any byte appended
  // since the last OK may be missing, even if a later Sync returns OK: write a new file.
  virtual Status Sync() = 0;
};

// A file open for reading at any place. It stays the file that was opened, even if its name is
// removed or given to another file. Threads: safe from any.
class ReadableFile {
 public:
  virtual ~ReadableFile() = default;
  // Fills `bytes` from `offset` on and returns the number of bytes read: fewer than asked for only
  // at the end of the file.
  virtual Result<size_t> ReadAt(uint64_t offset, MutableByteSpan bytes) = 0;
};

// An exclusive advisory lock, released by the destructor or by the death of the process.
class FileLock {
 public:
  virtual ~FileLock() = default;
};

// Threads: safe from any.
class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // The whole file. RESOURCE_EXHAUSTED when it is larger than `size_bytes_max`; FAILED_PRECONDITION
  // when `path` is a folder.
  virtual Result<std::vector<std::byte>> ReadFile(const std::string& path,
                                                  uint64_t size_bytes_max) = 0;
  // FAILED_PRECONDITION when `path` is not a regular file.
  virtual Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) = 0;
  // As OpenForRead, and reads are not answered by caches on the way, which may have other bytes.
  // UNIMPLEMENTED: there are none.
  virtual Result<std::unique_ptr<ReadableFile>> OpenPastCaches(const std::string& path) {
    return UnimplementedError("{}: there are no caches", path);
  }
  // Opens at the end. Creates an empty file, durably, if there is none.
  virtual Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) = 0;
  // Creates an empty file, or empties the one at `path`. For files that are written under a
  // temporary name first: the name is durable only after the Rename that follows.
  virtual Result<std::unique_ptr<AppendFile>> Create(const std::string& path) = 0;
  // Renames `from` to `to`, replacing what was there, and syncs the folder of `to`: the name is
  // durable then. Does not sync the file's bytes. Both are in one folder.
  virtual Status Rename(const std::string& from, const std::string& to) = 0;
  // When OK, `path` holds all of `bytes`; after an error or a crash, either that or its old
  // content. Writes `path`.tmp, syncs it, renames it and syncs the folder.
  virtual Status ReplaceFile(const std::string& path, ByteSpan bytes) = 0;
  // Names in a folder, sorted, without "." and "..".
  virtual Result<std::vector<std::string>> List(const std::string& folder) = 0;
  // Makes `folder` (mode 0750) and its missing parents. OK when it exists already.
  virtual Status MakeFolders(const std::string& folder) = 0;
  // Removes one file. NOT_FOUND when there is none.
  virtual Status Remove(const std::string& path) = 0;
  // Removes an empty folder. NOT_FOUND when there is none.
  virtual Status RemoveFolder(const std::string& folder) = 0;
  // Locks `path`, and creates it if missing. UNAVAILABLE when another holder has it; never waits.
  virtual Result<std::unique_ptr<FileLock>> Lock(const std::string& path) = 0;
};

// The file system of the machine. Makes files with mode 0640. Has no state.
class PosixFileSystem final : public FileSystem {
 public:
  Result<std::vector<std::byte>> ReadFile(const std::string& path,
                                          uint64_t size_bytes_max) override;
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override;
  Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override;
  Result<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  Status ReplaceFile(const std::string& path, ByteSpan bytes) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Result<std::vector<std::string>> List(const std::string& folder) override;
  Status MakeFolders(const std::string& folder) override;
  Status Remove(const std::string& path) override;
  Status RemoveFolder(const std::string& folder) override;
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override;
};

}  // namespace dws
