// A folder that somebody else may exchange, remove or write again at any time: opened once, all
// that is read of it is read relative to that, and in the end it is asked whether all of it is
// still what was read.
//
// What was read is one state of the folder when CheckUnchanged, asked after the last read, says OK:
// the path still leads to the folder that was opened, and each file in it is the one that was read
// (device, inode, size, times). A file that was written within one tick of the file system's clock
// may keep its times: who can, compares content besides.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/formats/mapped_file.h"

namespace dws {

// Lifecycle: open until destroyed. Threads: one at a time.
class HeldFolder {
 public:
  // Called before each access with its path, and while a long one goes on: a test changes the
  // folder there, a watchdog is told that there is progress.
  using OnAccess = std::function<void(const std::string& path)>;

  // Errors of open(2): NOT_FOUND, FAILED_PRECONDITION (no folder), ...
  static Result<HeldFolder> Open(const std::string& path, OnAccess on_access = {});
  // A folder in this one, which may be closed before it.
  Result<HeldFolder> OpenFolder(const std::string& name) const;

  const std::string& path() const { return place_.path; }  // what it was opened from

  // Names in it, sorted, without "." and "..".
  Result<std::vector<std::string>> List() const;
  // A whole file. RESOURCE_EXHAUSTED when it is larger than `size_bytes_max`.
  Result<std::vector<std::byte>> ReadFile(const std::string& name, uint64_t size_bytes_max);
  // Errors as MappedFile::Open.
  Result<MappedFile> OpenFile(const std::string& name, FileAccess access);
  // Of a file in it, or in a folder in it, as it is now; nullopt: there is none.
  Result<std::optional<FileStamp>> Stamp(const std::string& name) const;
  // Of a file that was read, as it was then.
  const FileStamp& StampRead(const std::string& name) const { return read_.at(name); }

  // UNAVAILABLE: another folder is at its path, or a file that was read is another or is gone.
  Status CheckUnchanged() const;

 private:
  HeldFolder(UniqueFd parent, FilePlace place, OnAccess on_access)
      : parent_(std::move(parent)), place_(std::move(place)), on_access_(std::move(on_access)) {}
  Status OpenIt();
  FilePlace PlaceOf(const std::string& name) const;
  // Notes what was opened; UNAVAILABLE: another file than the last time.
  Status Note(const std::string& name, const FileStamp& stamp);
  void Access(const std::string& path) const {
    if (on_access_ != nullptr) on_access_(path);
  }

  UniqueFd parent_;  // what place_ is relative to; not valid: the working directory
  FilePlace place_;
  OnAccess on_access_;
  UniqueFd folder_;
  FileStamp opened_;
  std::map<std::string, FileStamp> read_;
  std::vector<UniqueFd> held_;  // of ReadFile: while they are open nothing else gets their inodes
};

}  // namespace dws
