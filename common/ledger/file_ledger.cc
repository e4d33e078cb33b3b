#include "common/ledger/file_ledger.h"

#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/ledger/damaged_files.h"
#include "common/ledger/ledger_bytes.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr std::string_view kWayBack =
    "; nothing was changed. Restore the file from a copy, or start with "
    "--quarantine-damaged-ledger: the file is set aside, an empty ledger takes its place, and old "
    "trainers stay refused";

// The head has no checksum. An unknown version or kind before a sound record of this format is
// damage, not a file of another DWS version.
Status CheckFileHead(ByteSpan file, LedgerKind kind, const std::string& path) {
  if (file.size() < kLedgerHeadBytes || AsText(file.first(kLedgerMagic.size())) != kLedgerMagic) {
    return DataLossError("{} is damaged, or is not a ledger: expected it to begin with {}{}", path,
                         kLedgerMagic, kWayBack);
  }
  const bool sound = ParseLedgerRecord(file, kLedgerHeadBytes).has_value();
  if (const auto version = LoadLe<uint32_t>(file.data() + 8); version != kLedgerFormatVersion) {
    if (sound) {
      return DataLossError("{} is damaged: expected format {} at offset 8, found {}{}", path,
                           kLedgerFormatVersion, version, kWayBack);
    }
    return FailedPreconditionError(
        "{}: expected ledger format {}, found {}; start the DWS version that wrote it", path,
        kLedgerFormatVersion, version);
  }
  const auto found = LoadLe<uint32_t>(file.data() + 12);
  if (found == static_cast<uint32_t>(kind)) return OkStatus();
  if (sound && ToString(static_cast<LedgerKind>(found)) == "unknown") {
    return DataLossError("{} is damaged: expected kind {} at offset 12, found {}{}", path,
                         static_cast<uint32_t>(kind), found, kWayBack);
  }
  return FailedPreconditionError(
      "{}: expected the ledger of a {} (kind {}), found kind {}; give each daemon its own state "
      "folder",
      path, ToString(kind), static_cast<uint32_t>(kind), found);
}

Status Damaged(const std::string& path, uint64_t offset, std::string_view why) {
  return DataLossError("{}: the record at offset {} is damaged, {}{}", path, offset, why, kWayBack);
}

// Passes all sound records to `replay`. Returns the offset at which the torn tail begins, or the
// file's size if there is none.
Result<uint64_t> ReplayRecords(ByteSpan file, const std::string& path,
                               const FileLedger::Replay& replay) {
  uint64_t offset = kLedgerHeadBytes;
  while (offset < file.size()) {
    const std::optional<LedgerRecord> record = ParseLedgerRecord(file, offset);
    if (!record.has_value()) {
      const std::optional<std::string> damage = LedgerTailDamage(file, offset);
      if (damage.has_value()) return Damaged(path, offset, *damage);
      return offset;
    }
    if (Status status = replay(record->type, record->payload, offset); !status.ok()) {
      status = Annotate(status, fmt::format("{}: record at offset {}", path, offset));
      if (!absl::IsDataLoss(status)) return status;
      return DataLossError("{}{}", Message(status), kWayBack);
    }
    offset += kLedgerRecordHeadBytes + record->payload.size();
  }
  DWS_CHECK(offset == file.size());
  return offset;
}

}  // namespace

FileLedger::FileLedger(FileSystem& file_system, std::string path, LedgerKind kind,
                       std::unique_ptr<FileLock> lock)
    : file_system_(file_system), path_(std::move(path)), kind_(kind), lock_(std::move(lock)) {}

Result<std::unique_ptr<FileLedger>> FileLedger::Open(FileSystem& file_system,
                                                     const std::string& path, LedgerKind kind,
                                                     const Replay& replay, const Begin& begin) {
  if (const size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0) {
    DWS_RETURN_IF_ERROR(file_system.MakeFolders(path.substr(0, slash)));
  }
  Result<std::unique_ptr<FileLock>> lock = file_system.Lock(path + ".lock");
  if (!lock.ok()) {
    return Annotate(lock.status(), fmt::format("the ledger {} cannot be used", path));
  }
  auto ledger =
      std::unique_ptr<FileLedger>(new FileLedger(file_system, path, kind, *std::move(lock)));
  const Status opened = ledger->OpenSound(replay);
  if (absl::IsNotFound(opened)) {
    DWS_RETURN_IF_ERROR(ledger->BeginAnew(begin, OkStatus()));
  } else if (absl::IsDataLoss(opened) && begin) {
    DWS_RETURN_IF_ERROR(ledger->BeginAnew(begin, opened));
  } else {
    DWS_RETURN_IF_ERROR(opened);
  }
  return ledger;
}

Status FileLedger::OpenSound(const Replay& replay) {
  const Result<std::vector<std::byte>> read = file_system_.ReadFile(path_, limits::kLedgerBytesMax);
  if (absl::IsFailedPrecondition(read.status())) {
    return DataLossError("{}{}", Message(read.status()), kWayBack);
  }
  DWS_RETURN_IF_ERROR(read.status());
  const std::vector<std::byte>& file = *read;
  DWS_RETURN_IF_ERROR(CheckFileHead(file, kind_, path_));
  DWS_ASSIGN_OR_RETURN(const uint64_t sound_bytes, ReplayRecords(file, path_, replay));
  DWS_CHECK(sound_bytes >= kLedgerHeadBytes && sound_bytes <= file.size());
  if (sound_bytes < file.size()) {
    LogWarning("ledger_tail_cut", {{"path", path_},
                                   {"bytes", file.size() - sound_bytes},
                                   {"offset", sound_bytes},
                                   {"reason", "the last record is incomplete"}});
    DWS_RETURN_IF_ERROR(file_system_.ReplaceFile(path_, ByteSpan(file).first(sound_bytes)));
  }
  DWS_ASSIGN_OR_RETURN(file_, file_system_.OpenForAppend(path_));
  size_bytes_ = sound_bytes;
  return OkStatus();
}

// The new file's first records are known before the old file is renamed. A crash between the rename
// and the rewrite leaves no file: the next start then begins with the same records.
Status FileLedger::BeginAnew(const Begin& begin, const Status& damage) {
  std::vector<RawRecord> records;
  if (begin) {
    DWS_ASSIGN_OR_RETURN(records, begin(damage));
  }
  if (!damage.ok()) {
    DWS_ASSIGN_OR_RETURN(const std::string aside, SetDamagedAside(file_system_, path_));
    LogError("ledger_quarantined",
             {{"path", path_}, {"moved_to", aside}, {"reason", Message(damage)}});
  }
  return Rewrite(records);
}

namespace {
Status Sync(AppendFile& file) {
  DWS_FAILPOINT("ledger.append.before_sync");
  return file.Sync();
}
}  // namespace

Status FileLedger::Append(const RawRecord& record) {
  if (file_ == nullptr) {
    return FailedPreconditionError("ledger {}: its end is unknown after an error, rewrite it",
                                   path_);
  }
  DWS_CHECK(size_bytes_ >= kLedgerHeadBytes && size_bytes_ <= limits::kLedgerBytesMax);
  std::vector<std::byte> bytes;
  AppendLedgerRecord(record, bytes, size_bytes_);
  if (bytes.size() > limits::kLedgerBytesMax - size_bytes_) {
    return ResourceExhaustedError("ledger {}: {} more bytes would pass the limit of {}", path_,
                                  bytes.size(), limits::kLedgerBytesMax);
  }
  Status status = file_->Append(bytes);
  if (status.ok()) status = Sync(*file_);
  DWS_KILLPOINT("ledger.append.after_sync");
  if (!status.ok()) {
    file_.reset();
    return status;
  }
  size_bytes_ += bytes.size();
  return OkStatus();
}

Status FileLedger::Rewrite(std::span<const RawRecord> records) {
  std::vector<std::byte> bytes = LedgerHead(kind_);
  for (const RawRecord& record : records) AppendLedgerRecord(record, bytes, bytes.size());
  DWS_CHECK(bytes.size() <= limits::kLedgerBytesMax);
  // Even if ReplaceFile fails, the name may refer to the new file already: the old handle must not
  // be used.
  file_.reset();
  DWS_RETURN_IF_ERROR(file_system_.ReplaceFile(path_, bytes));
  DWS_ASSIGN_OR_RETURN(file_, file_system_.OpenForAppend(path_));
  size_bytes_ = bytes.size();
  return OkStatus();
}

}  // namespace dws
