// A regular file that is read in ranges, because objects may be larger than memory.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws::dwsctl {

// An open file. Nothing locks it, so other processes may change it. Threads: one at a time.
class ByteFile {
 public:
  // NOT_FOUND, PERMISSION_DENIED, ...: from errno, naming the path. INVALID_ARGUMENT: not a regular
  // file.
  static Result<ByteFile> Open(const std::string& path);

  uint64_t size_bytes() const { return size_bytes_; }
  // Reads `length` bytes from `offset`, fewer at the end of the file. DATA_LOSS: the disk cannot
  // read them.
  Result<std::vector<std::byte>> Read(uint64_t offset, uint64_t length) const;

 private:
  ByteFile(UniqueFd file, uint64_t size_bytes, std::string path)
      : file_(std::move(file)), size_bytes_(size_bytes), path_(std::move(path)) {}

  UniqueFd file_;
  uint64_t size_bytes_;
  std::string path_;
};

}  // namespace dws::dwsctl
