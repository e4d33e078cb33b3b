// A file system in memory that fails when told to and loses what was not synced.
//
// For each file it keeps the content that the process sees and the content that a power cut leaves.
// Folders are implied.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Threads: safe from any. Files and locks it gave out must not outlive it.
class FaultFileSystem final : public FileSystem {
 public:
  // The n-th write, sync, rename or replace from now on (1 = the next) fails with `error`; a
  // failing append leaves half of its bytes, a failing sync leaves nothing durable, a failing
  // replace the old content.
  void FailOperation(int n, Status error);
  // Until it is OK: whole reads of this file fail so.
  void FailReads(const std::string& path, Status error);
  // The n-th such operation is preceded by `call`, which must not use this file system.
  void BeforeOperation(int n, std::function<void()> call);
  // The number of such operations so far.
  int operation_count() const;

  // Power cut: every file keeps its synced bytes plus the first `kept_bytes` of the others.
  // Earlier open files and locks must not be used any longer.
  void LosePower(uint64_t kept_bytes = 0);

  // Direct access, to damage and to inspect files.
  std::vector<std::byte> Content(const std::string& path) const;
  void SetContent(const std::string& path, std::vector<std::byte> content);

  Result<std::vector<std::byte>> ReadFile(const std::string& path,
                                          uint64_t size_bytes_max) override;
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override;
  Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override;
  Result<std::unique_ptr<AppendFile>> Create(const std::string& path) override;
  Status Rename(const std::string& from, const std::string& to) override;
  Status ReplaceFile(const std::string& path, ByteSpan bytes) override;
  Result<std::vector<std::string>> List(const std::string& folder) override;
  Status MakeFolders(const std::string& folder) override;
  Status Remove(const std::string& path) override;
  Status RemoveFolder(const std::string& folder) override;
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override;

 private:
  friend class FaultAppendFile;
  friend class FaultReadableFile;
  friend class FaultFileLock;

  struct File {
    std::vector<std::byte> seen;
    size_t durable_bytes = 0;  // a prefix: files only grow or are replaced
  };

  // Counts an operation; the error it must fail with, if any.
  std::optional<Status> NextOperation() REQUIRES(mutex_);

  mutable Mutex mutex_;
  std::map<std::string, std::shared_ptr<File>> files_ GUARDED_BY(mutex_);
  std::map<std::string, bool> locked_ GUARDED_BY(mutex_);
  int operations_ GUARDED_BY(mutex_) = 0;
  int fail_at_ GUARDED_BY(mutex_) = 0;
  Status error_ GUARDED_BY(mutex_);
  std::map<std::string, Status> unread_ GUARDED_BY(mutex_);
  int call_at_ GUARDED_BY(mutex_) = 0;
  std::function<void()> call_ GUARDED_BY(mutex_);
};

}  // namespace dws
