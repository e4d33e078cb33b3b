// Reads a folder that another process may replace, remove or rewrite at any time. It opens the
// folder once, reads everything relative to that descriptor, and at the end checks that nothing has
// changed.
//
// If CheckUnchanged returns OK after the last read, all that was read is one state of the folder:
// the path still leads to the folder that was opened, and each file in it is the one that was read
// (device, inode, size, times). Two writes within one tick of the file system's clock can leave the
// same times, so a caller that can should also compare contents.
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

// An open folder. Lifecycle: open until destroyed. Threads: one at a time.
class HeldFolder {
 public:
  // Called with the path before each access, and from any thread during long accesses. Tests change
  // the folder in it; the daemon reports progress to its watchdog.
  using OnAccess = std::function<void(const std::string& path)>;

  // Errors of open(2): NOT_FOUND, FAILED_PRECONDITION (not a folder), ...
  static Result<HeldFolder> Open(const std::string& path, OnAccess on_access = {});
  // Opens a folder inside this one. This one may be closed first.
  Result<HeldFolder> OpenFolder(const std::string& name) const;

  const std::string& path() const { return place_.path; }  // the path it was opened from

  // The names in the folder, sorted, without "." and "..".
  Result<std::vector<std::string>> List() const;
  // Reads a whole file. RESOURCE_EXHAUSTED when it is larger than `size_bytes_max`.
  Result<std::vector<std::byte>> ReadFile(const std::string& name, uint64_t size_bytes_max);
  // Errors as MappedFile::Open.
  Result<MappedFile> OpenFile(const std::string& name, FileAccess access);
  // Returns the current stamp of a file in this folder or in a subfolder; nullopt: there is no such
  // file.
  Result<std::optional<FileStamp>> Stamp(const std::string& name) const;
  // The stamp that a file had when it was read.
  const FileStamp& StampRead(const std::string& name) const { return read_.at(name); }

  // Tells OnAccess that reading one of the files goes on.
  void Progress() const { Access(path()); }

  // UNAVAILABLE: another folder is at the path, or a file that was read has been changed, replaced
  // or removed.
  Status CheckUnchanged() const;

 private:
  HeldFolder(UniqueFd parent, FilePlace place, OnAccess on_access)
      : parent_(std::move(parent)), place_(std::move(place)), on_access_(std::move(on_access)) {}
  Status OpenIt();
  FilePlace PlaceOf(const std::string& name) const;
  // Records the stamp of an opened file. UNAVAILABLE: it differs from the last time.
  Status Note(const std::string& name, const FileStamp& stamp);
  void Access(const std::string& path) const {
    if (on_access_ != nullptr) on_access_(path);
  }

  UniqueFd parent_;  // place_ is relative to this folder; not valid: to the working directory
  FilePlace place_;
  OnAccess on_access_;
  UniqueFd folder_;
  FileStamp opened_;
  std::map<std::string, FileStamp> read_;
  std::vector<UniqueFd> held_;  // files of ReadFile; no new file gets their inodes while open
};

}  // namespace dws
