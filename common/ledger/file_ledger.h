// An append-only file of checksummed records (LEDGER.md). Knows nothing of what records mean.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/ledger/ledger_record.h"

namespace dws {

// Lifecycle: Open reads all records and holds an exclusive lock (`path`.lock) until the destructor.
// Threads: one at a time.
class FileLedger {
 public:
  // Gets each record with its offset in the file; its error ends Open.
  using Replay = std::function<Status(uint32_t type, ByteSpan payload, uint64_t offset)>;
  // Where no sound file is: what a new one begins with, or the error that ends Open. `damage`: of
  // the file that is there, which is then set aside; OK: none is there.
  using Begin = std::function<Result<std::vector<RawRecord>>(const Status& damage)>;

  // Opens, or creates durably, the ledger at `path`; its folder is made. An incomplete last record
  // is cut off with a warning in the log: a crash in the middle of an append. `file_system`
  // outlives the ledger. Without `begin` a new file is empty, and a damaged one is refused.
  //
  // UNAVAILABLE: another process holds it. DATA_LOSS: damage anywhere else, with the offset and
  // what to do, and nothing was changed; so is a folder in its place, and what `replay` calls
  // DATA_LOSS. FAILED_PRECONDITION:
  // of the other kind, or of an unknown version. RESOURCE_EXHAUSTED: larger than
  // limits::kLedgerBytesMax, or limits::kDamagedLedgersMax lie beside it. What else `replay`
  // returned, with the offset.
  static Result<std::unique_ptr<FileLedger>> Open(FileSystem& file_system, const std::string& path,
                                                  LedgerKind kind, const Replay& replay,
                                                  const Begin& begin = {});

  // Appends and syncs one record; its payload is at most limits::kLedgerRecordBytesMax (CHECK).
  // After an error the file's end is unknown: every Append fails until a Rewrite succeeded.
  Status Append(const RawRecord& record);

  // Replaces all records atomically. After an error the old ones are still there.
  Status Rewrite(std::span<const RawRecord> records);

  uint64_t size_bytes() const { return size_bytes_; }
  bool needs_rewrite() const { return file_ == nullptr; }

 private:
  FileLedger(FileSystem& file_system, std::string path, LedgerKind kind,
             std::unique_ptr<FileLock> lock);
  // Reads and opens the file. NOT_FOUND: there is none.
  Status OpenSound(const Replay& replay);
  Status BeginAnew(const Begin& begin, const Status& damage);

  FileSystem& file_system_;
  const std::string path_;
  const LedgerKind kind_;
  const std::unique_ptr<FileLock> lock_;
  std::unique_ptr<AppendFile> file_;  // none: the end of the file is unknown
  uint64_t size_bytes_ = 0;
};

}  // namespace dws
