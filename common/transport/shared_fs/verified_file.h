// A file listed in a manifest, read in ranges: every byte it returns was checked with its piece's
// SHA-256.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/transport/shared_fs/manifest.h"
#include "common/transport/shared_fs/remote_file.h"

namespace dws::shared {

// Keeps the last piece, so that ascending ranges read each byte once. Threads: one at a time.
class VerifiedFile {
 public:
  // The file of `entry` in `folder`; `files` outlives it. NOT_FOUND: it does not exist yet, or no
  // longer. Other errors as FileSystem::OpenForRead.
  static Result<VerifiedFile> Open(FileSystem& files, const std::string& folder, FileEntry entry);

  // These ranges will be read, in ascending order: of a file that is far away, reads the pieces
  // ahead that have something of them. Returns the memory that this takes from now on, at most
  // `bytes_max`; 0: nothing is read ahead.
  uint64_t WillRead(const std::vector<FileRange>& ranges, uint64_t bytes_max);

  // Copies a range to `buffer` and returns it. DATA_LOSS: the range is outside the file, or a piece
  // is cut off or differs from the manifest, also past caches. Other errors as
  // ReadableFile::ReadAt.
  Result<ByteSpan> Read(uint64_t offset, uint64_t size_bytes, std::vector<std::byte>& buffer);

  // Whole piece `number`, valid until the next call. Errors as Read's.
  Result<ByteSpan> Piece(size_t number);

  const FileEntry& entry() const { return entry_; }
  const std::string& path() const { return path_; }

 private:
  VerifiedFile(FileSystem& files, std::unique_ptr<ReadableFile> file, std::string path,
               FileEntry entry);
  // Fills piece_ and checks it. Errors as Read's.
  Status ReadPiece(ReadableFile& file, size_t number);

  FileSystem* files_;
  std::unique_ptr<ReadableFile> file_;
  std::string path_;
  FileEntry entry_;
  std::vector<std::byte> piece_;
  size_t piece_number_ = SIZE_MAX;  // the number of piece_; SIZE_MAX: there is none
};

// A whole small file. RESOURCE_EXHAUSTED: it is larger than `size_bytes_max`. Other errors as
// above.
Result<std::vector<std::byte>> ReadVerified(FileSystem& files, const std::string& folder,
                                            const FileEntry& entry, uint64_t size_bytes_max);

}  // namespace dws::shared
