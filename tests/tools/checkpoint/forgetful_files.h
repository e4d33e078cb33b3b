// The real file system with injected faults: a power cut undoes removals that were not synced, and
// a rename can fail.
#pragma once

#include <map>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/file_system.h"

namespace dws::checkpoint {

// Only for files in one folder. Threads: one.
class ForgetfulFiles final : public FileSystem {
 public:
  // Restores the files that were removed since the folder was last synced.
  void LosePower() {
    for (const auto& [path, content] : removed_) DWS_CHECK(real_.ReplaceFile(path, content).ok());
  }

  Status Remove(const std::string& path) override {
    const auto content = real_.ReadFile(path, uint64_t{1} << 30);
    if (content.ok()) removed_[path] = *content;
    return real_.Remove(path);
  }
  // The n-th rename from now fails and renames nothing.
  void FailRename(int n, Status error) {
    renames_left_ = n;
    rename_error_ = std::move(error);
  }

  Status Rename(const std::string& from, const std::string& to) override {
    if (renames_left_ > 0 && --renames_left_ == 0) return rename_error_;
    removed_.clear();
    return real_.Rename(from, to);
  }
  Status ReplaceFile(const std::string& path, ByteSpan bytes) override {
    removed_.clear();
    return real_.ReplaceFile(path, bytes);
  }
  Result<std::vector<std::byte>> ReadFile(const std::string& path, uint64_t max) override {
    return real_.ReadFile(path, max);
  }
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    return real_.OpenForRead(path);
  }
  Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override {
    return real_.OpenForAppend(path);
  }
  Result<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    return real_.Create(path);
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    return real_.List(folder);
  }
  Status MakeFolders(const std::string& folder) override { return real_.MakeFolders(folder); }
  Status RemoveFolder(const std::string& folder) override { return real_.RemoveFolder(folder); }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return real_.Lock(path);
  }

 private:
  PosixFileSystem real_;
  std::map<std::string, std::vector<std::byte>> removed_;
  int renames_left_ = 0;
  Status rename_error_;
};

}  // namespace dws::checkpoint
