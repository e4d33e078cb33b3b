// A file that a manifest vouches for, read in ranges: every byte that comes out was checked with
// its piece's SHA-256.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/transport/shared_fs/manifest.h"

namespace dws::shared {

// Keeps the piece it read last: ranges that ascend read each byte once. Threads: one at a time.
class VerifiedFile {
 public:
  // The file of `entry` in `folder`. NOT_FOUND: it is not there (yet, or any more). Else as
  // FileSystem::OpenForRead.
  static Result<VerifiedFile> Open(FileSystem& files, const std::string& folder, FileEntry entry);

  // A range, copied to `buffer`, which it becomes. DATA_LOSS: outside the file, or a piece that is
  // not what the manifest says, or cut off. Else as ReadableFile::ReadAt.
  Result<ByteSpan> Read(uint64_t offset, uint64_t size_bytes, std::vector<std::byte>& buffer);

  // Whole piece `number`, valid until the next call. Errors as Read's.
  Result<ByteSpan> Piece(size_t number);

  const FileEntry& entry() const { return entry_; }
  const std::string& path() const { return path_; }

 private:
  VerifiedFile(std::unique_ptr<ReadableFile> file, std::string path, FileEntry entry);

  std::unique_ptr<ReadableFile> file_;
  std::string path_;
  FileEntry entry_;
  std::vector<std::byte> piece_;
  size_t piece_number_ = SIZE_MAX;  // which piece_ is; SIZE_MAX: none
};

// All of a small file. RESOURCE_EXHAUSTED: it is larger than `size_bytes_max`. Else as above.
Result<std::vector<std::byte>> ReadVerified(FileSystem& files, const std::string& folder,
                                            const FileEntry& entry, uint64_t size_bytes_max);

}  // namespace dws::shared
