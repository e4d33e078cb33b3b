// An append-only file of checksummed records (LEDGER.md). It does not interpret the records.
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
  // Receives each record with its offset in the file. Its error ends Open.
  using Replay = std::function<Status(uint32_t type, ByteSpan payload, uint64_t offset)>;
  // Called when there is no sound file: returns the first records of a new one, or the error that
  // ends Open. `damage`: what is wrong with the existing file, which is then set aside; OK: there
  // is no file.
  using Begin = std::function<Result<std::vector<RawRecord>>(const Status& damage)>;

  // Opens the ledger at `path`, or creates it and its folder durably. Cuts off an incomplete last
  // record, with a warning in the log: the process crashed in the middle of an append.
  // `file_system` must outlive the ledger. Without `begin` a new file is empty, and a damaged one
  // is refused.
  //
  // UNAVAILABLE: another process holds it.
  // DATA_LOSS: damage anywhere else, a folder in its place, or DATA_LOSS from `replay`; the message
  //   has the offset and says what to do. Nothing was changed.
  // FAILED_PRECONDITION: a ledger of the other kind, or of an unknown version.
  // RESOURCE_EXHAUSTED: it is larger than limits::kLedgerBytesMax, or limits::kDamagedLedgersMax
  //   damaged ones are beside it.
  // Other errors of `replay` are returned with the offset.
  static Result<std::unique_ptr<FileLedger>> Open(FileSystem& file_system, const std::string& path,
                                                  LedgerKind kind, const Replay& replay,
                                                  const Begin& begin = {});

  // Appends and syncs one record; its payload is at most limits::kLedgerRecordBytesMax (CHECK).
  // After a write or sync error the file's end is unknown: every Append fails with
  // FAILED_PRECONDITION until a Rewrite succeeds. RESOURCE_EXHAUSTED: limits::kLedgerBytesMax would
  // be exceeded; nothing was written.
  Status Append(const RawRecord& record);

  // Replaces all records atomically. After an error the file has either the old or the new ones,
  // and Append fails until a Rewrite succeeds.
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
  std::unique_ptr<AppendFile> file_;  // null: the end of the file is unknown
  uint64_t size_bytes_ = 0;
};

}  // namespace dws
