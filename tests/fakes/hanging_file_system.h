// Acts like a mount whose server is down: while it hangs, lists, reads and replacements
// do not return.
#pragma once

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/threads/mutex.h"

namespace dws {

// Lifecycle: `under` outlives it; Release before its users stop. Threads: safe from any.
class HangingFileSystem final : public FileSystem {
 public:
  explicit HangingFileSystem(FileSystem& under) : under_(under) {}

  // `only_list`: only lists of this folder hang; empty: all that hangs.
  void Hang(std::string only_list = "") {
    MutexLock lock(mutex_);
    hangs_ = true;
    only_list_ = std::move(only_list);
  }
  void Release() {
    MutexLock lock(mutex_);
    hangs_ = false;
    released_.NotifyAll();
  }
  // Returns whether a replacement, or a list, hangs now.
  bool holds_replacement() const {
    MutexLock lock(mutex_);
    return hangs_ && replacements_ > 0;
  }
  bool holds_list() const {
    MutexLock lock(mutex_);
    return hangs_ && lists_ > 0;
  }

  Result<std::vector<std::byte>> ReadFile(const std::string& path,
                                          uint64_t size_bytes_max) override {
    Wait(&reads_, "");
    return under_.ReadFile(path, size_bytes_max);
  }
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string& path) override {
    return under_.OpenForRead(path);
  }
  Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override {
    return under_.OpenForAppend(path);
  }
  Result<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    return under_.Create(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return under_.Rename(from, to);
  }
  Status ReplaceFile(const std::string& path, ByteSpan bytes) override {
    Wait(&replacements_, "");
    return under_.ReplaceFile(path, bytes);
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    Wait(&lists_, folder);
    return under_.List(folder);
  }
  Status MakeFolders(const std::string& folder) override { return under_.MakeFolders(folder); }
  Status Remove(const std::string& path) override { return under_.Remove(path); }
  Status RemoveFolder(const std::string& folder) override { return under_.RemoveFolder(folder); }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return under_.Lock(path);
  }

 private:
  void Wait(int* waiting, const std::string& list) {
    MutexLock lock(mutex_);
    if (!only_list_.empty() && list != only_list_) return;
    ++*waiting;
    while (hangs_) released_.Wait(mutex_);
    --*waiting;
  }

  FileSystem& under_;
  mutable Mutex mutex_;
  CondVar released_;
  bool hangs_ GUARDED_BY(mutex_) = false;
  std::string only_list_ GUARDED_BY(mutex_);
  int reads_ = 0;  // that wait; the next two likewise, all under mutex_
  int replacements_ = 0;
  int lists_ = 0;
};

}  // namespace dws
