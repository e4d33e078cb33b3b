#include "common/ledger/file_ledger.h"

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/model/digest.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr std::string_view kMagic = "DWSLEDGR";
constexpr uint32_t kFormatVersion = 1;
constexpr size_t kFileHeadBytes = 16;
constexpr size_t kRecordHeadBytes = 32;

struct ParsedRecord {
  uint32_t type = 0;
  ByteSpan payload;
};

std::vector<std::byte> FileHead(LedgerKind kind) {
  std::vector<std::byte> head(kFileHeadBytes);
  std::memcpy(head.data(), kMagic.data(), kMagic.size());
  StoreLe(head.data() + 8, kFormatVersion);
  StoreLe(head.data() + 12, static_cast<uint32_t>(kind));
  return head;
}

Status CheckFileHead(ByteSpan file, LedgerKind kind, const std::string& path) {
  if (file.size() < kFileHeadBytes || AsText(file.first(kMagic.size())) != kMagic) {
    return FailedPreconditionError(
        "{} is no ledger: expected it to begin with {}; move it away to start with an empty one",
        path, kMagic);
  }
  if (const auto version = LoadLe<uint32_t>(file.data() + 8); version != kFormatVersion) {
    return FailedPreconditionError(
        "{}: expected ledger format {}, found {}; start the DWS version that wrote it", path,
        kFormatVersion, version);
  }
  if (const auto found = LoadLe<uint32_t>(file.data() + 12); found != static_cast<uint32_t>(kind)) {
    return FailedPreconditionError(
        "{}: expected the ledger of a {} (kind {}), found kind {}; give each daemon its own state "
        "folder",
        path, ToString(kind), static_cast<uint32_t>(kind), found);
  }
  return OkStatus();
}

uint64_t HeadCheck(const std::byte* head, uint64_t offset) {
  return MixWord(offset, LoadLe<uint64_t>(head)).lane0;
}

void AppendRecord(const RawRecord& record, std::vector<std::byte>& file, uint64_t offset) {
  DWS_CHECK(record.payload.size() <= limits::kLedgerRecordBytesMax);
  const size_t begin = file.size();
  file.resize(begin + kRecordHeadBytes);
  std::byte* const head = file.data() + begin;
  StoreLe(head, static_cast<uint32_t>(record.payload.size()));
  StoreLe(head + 4, record.type);
  StoreLe(head + 8, HeadCheck(head, offset));
  const Digest digest = DigestBytes(record.payload, offset);
  StoreLe(head + 16, digest.lane0);
  StoreLe(head + 24, digest.lane1);
  file.insert(file.end(), record.payload.begin(), record.payload.end());
}

// The record at `offset`, if a sound one is there.
std::optional<ParsedRecord> ParseRecord(ByteSpan file, uint64_t offset) {
  if (file.size() - offset < kRecordHeadBytes) return std::nullopt;
  const std::byte* const head = file.data() + offset;
  if (LoadLe<uint64_t>(head + 8) != HeadCheck(head, offset)) return std::nullopt;
  const uint64_t length = LoadLe<uint32_t>(head);
  if (length > limits::kLedgerRecordBytesMax) return std::nullopt;
  if (length > file.size() - offset - kRecordHeadBytes) return std::nullopt;
  const ByteSpan payload = file.subspan(offset + kRecordHeadBytes, length);
  const Digest expected = {.lane0 = LoadLe<uint64_t>(head + 16),
                           .lane1 = LoadLe<uint64_t>(head + 24)};
  if (DigestBytes(payload, offset) != expected) return std::nullopt;
  return ParsedRecord{.type = LoadLe<uint32_t>(head + 4), .payload = payload};
}

Status Damaged(const std::string& path, uint64_t offset, std::string_view why) {
  return DataLossError(
      "{}: the record at offset {} is damaged, {}; nothing was changed. Restore the file from a "
      "copy, or move it away to begin an empty ledger (weights are then compared and repaired in "
      "full; old trainers are no longer recognised)",
      path, offset, why);
}

// OK when what follows `offset`, where no sound record is, can be the rest of one torn append:
// every append is synced before the next begins.
Status CheckTornTail(ByteSpan file, uint64_t offset, const std::string& path) {
  const ByteSpan tail = file.subspan(offset);
  const bool zeros =
      std::all_of(tail.begin(), tail.end(), [](std::byte byte) { return byte == std::byte{0}; });
  if (zeros) return OkStatus();
  if (tail.size() > kRecordHeadBytes + limits::kLedgerRecordBytesMax) {
    return Damaged(path, offset,
                   fmt::format("and {} bytes follow, more than one record", tail.size()));
  }
  for (uint64_t behind = offset + 1; behind < file.size(); ++behind) {
    if (!ParseRecord(file, behind).has_value()) continue;
    return Damaged(path, offset, fmt::format("a sound one follows at offset {}", behind));
  }
  return OkStatus();
}

// Hands all sound records to `replay`; returns where the torn tail begins, the file's size if there
// is none.
Result<uint64_t> ReplayRecords(ByteSpan file, const std::string& path,
                               const FileLedger::Replay& replay) {
  uint64_t offset = kFileHeadBytes;
  while (offset < file.size()) {
    const std::optional<ParsedRecord> record = ParseRecord(file, offset);
    if (!record.has_value()) {
      DWS_RETURN_IF_ERROR(CheckTornTail(file, offset, path));
      return offset;
    }
    if (Status status = replay(record->type, record->payload, offset); !status.ok()) {
      return Annotate(status, fmt::format("{}: record at offset {}", path, offset));
    }
    offset += kRecordHeadBytes + record->payload.size();
  }
  return offset;
}

}  // namespace

FileLedger::FileLedger(FileSystem& file_system, std::string path, LedgerKind kind,
                       std::unique_ptr<FileLock> lock)
    : file_system_(file_system), path_(std::move(path)), kind_(kind), lock_(std::move(lock)) {}

Result<std::unique_ptr<FileLedger>> FileLedger::Open(FileSystem& file_system,
                                                     const std::string& path, LedgerKind kind,
                                                     const Replay& replay) {
  if (const size_t slash = path.rfind('/'); slash != std::string::npos && slash > 0) {
    DWS_RETURN_IF_ERROR(file_system.MakeFolders(path.substr(0, slash)));
  }
  Result<std::unique_ptr<FileLock>> lock = file_system.Lock(path + ".lock");
  if (!lock.ok()) {
    return Annotate(lock.status(), fmt::format("the ledger {} cannot be used", path));
  }
  auto ledger =
      std::unique_ptr<FileLedger>(new FileLedger(file_system, path, kind, *std::move(lock)));

  Result<std::vector<std::byte>> file = file_system.ReadFile(path, limits::kLedgerBytesMax);
  if (absl::IsNotFound(file.status())) {
    DWS_RETURN_IF_ERROR(ledger->Rewrite({}));
    return ledger;
  }
  DWS_RETURN_IF_ERROR(file.status());
  DWS_RETURN_IF_ERROR(CheckFileHead(*file, kind, path));
  DWS_ASSIGN_OR_RETURN(const uint64_t sound_bytes, ReplayRecords(*file, path, replay));
  if (sound_bytes < file->size()) {
    LogWarning("ledger_tail_cut", {{"path", path},
                                   {"bytes", file->size() - sound_bytes},
                                   {"offset", sound_bytes},
                                   {"reason", "the last record is incomplete"}});
    DWS_RETURN_IF_ERROR(file_system.ReplaceFile(path, ByteSpan(*file).first(sound_bytes)));
  }
  DWS_ASSIGN_OR_RETURN(ledger->file_, file_system.OpenForAppend(path));
  ledger->size_bytes_ = sound_bytes;
  return ledger;
}

Status FileLedger::Append(const RawRecord& record) {
  if (file_ == nullptr) {
    return FailedPreconditionError("ledger {}: its end is unknown after an error, rewrite it",
                                   path_);
  }
  std::vector<std::byte> bytes;
  AppendRecord(record, bytes, size_bytes_);
  if (bytes.size() > limits::kLedgerBytesMax - size_bytes_) {
    return ResourceExhaustedError("ledger {}: {} more bytes would pass the limit of {}", path_,
                                  bytes.size(), limits::kLedgerBytesMax);
  }
  Status status = file_->Append(bytes);
  if (status.ok()) status = file_->Sync();
  if (!status.ok()) {
    file_.reset();
    return status;
  }
  size_bytes_ += bytes.size();
  return OkStatus();
}

Status FileLedger::Rewrite(std::span<const RawRecord> records) {
  std::vector<std::byte> bytes = FileHead(kind_);
  for (const RawRecord& record : records) AppendRecord(record, bytes, bytes.size());
  DWS_CHECK(bytes.size() <= limits::kLedgerBytesMax);
  // Even when it fails the name may lead to the new file already: the old handle must not be used.
  file_.reset();
  DWS_RETURN_IF_ERROR(file_system_.ReplaceFile(path_, bytes));
  DWS_ASSIGN_OR_RETURN(file_, file_system_.OpenForAppend(path_));
  size_bytes_ = bytes.size();
  return OkStatus();
}

}  // namespace dws
