// A regular file read by ranges: objects may be larger than memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws::dwsctl {

// Immutable but for what others do to the file. Threads: one at a time.
class ByteFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, ...: from errno, naming the path. INVALID_ARGUMENT: no regular
  // file.
  static Result<ByteFile> Open(const std::string& path);

  uint64_t size_bytes() const { return size_bytes_; }
  // The bytes from `offset` on, `length` of them or up to the file's end. DATA_LOSS: the disk
  // cannot read them.
  Result<std::vector<std::byte>> Read(uint64_t offset, uint64_t length) const;

 private:
  ByteFile(UniqueFd file, uint64_t size_bytes, std::string path)
      : file_(std::move(file)), size_bytes_(size_bytes), path_(std::move(path)) {}

  UniqueFd file_;
  uint64_t size_bytes_;
  std::string path_;
};

}  // namespace dws::dwsctl
