// Writes files whose SHA-256 a manifest will hold. A file is written under a temporary name and
// hashed meanwhile, then synced and renamed.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/transport/shared_fs/manifest.h"

namespace dws::shared {

inline constexpr std::string_view kTemporaryEnding = ".tmp";

// Makes the entry of a file from its bytes. Threads: one at a time.
class PieceHasher {
 public:
  PieceHasher(std::string name, uint32_t piece_bytes);
  void Add(ByteSpan bytes);
  FileEntry Finish();

 private:
  FileEntry entry_;
  Sha256 hash_;
  uint32_t filled_ = 0;  // bytes of the current piece
};

// One file, written in parts. Lifecycle: Append, then Finish; the destructor removes what was not
// finished. All errors as FileSystem's. Threads: one at a time.
class FileWriter {
 public:
  static Result<FileWriter> Create(FileSystem& files, const std::string& folder, std::string name,
                                   uint32_t piece_bytes);
  // Syncs about every 256 MiB, so that no call waits for the disk to take a whole file.
  Status Append(ByteSpan bytes);
  // After it the file is durable under its final name.
  Result<FileEntry> Finish();

 private:
  // The file under its temporary name, until it is renamed.
  struct Unfinished {
    Unfinished(FileSystem& of, std::string named) : files(of), path(std::move(named)) {}
    ~Unfinished();
    Unfinished(const Unfinished&) = delete;
    Unfinished& operator=(const Unfinished&) = delete;

    FileSystem& files;
    const std::string path;
    bool renamed = false;
  };

  FileWriter(std::unique_ptr<Unfinished> unfinished, std::string path,
             std::unique_ptr<AppendFile> file, PieceHasher hasher);

  std::unique_ptr<Unfinished> unfinished_;
  std::string path_;
  std::unique_ptr<AppendFile> file_;  // closed before it is removed
  PieceHasher hasher_;
  uint64_t unsynced_ = 0;  // bytes
};

// Writes a file from memory. Errors as FileSystem::ReplaceFile.
Result<FileEntry> WriteWhole(FileSystem& files, const std::string& folder, std::string_view name,
                             ByteSpan bytes);

}  // namespace dws::shared
