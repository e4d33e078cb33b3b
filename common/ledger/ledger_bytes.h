// Writes and reads the bytes of a ledger file (LEDGER.md). Pure. Used by file_ledger.h, and by
// dwsctl inspect to look at damaged files.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/ledger/ledger_record.h"
#include "common/model/digest/digest.h"

namespace dws {

inline constexpr std::string_view kLedgerMagic = "DWSLEDGR";
inline constexpr uint32_t kLedgerFormatVersion = 1;
inline constexpr size_t kLedgerHeadBytes = 16;
inline constexpr size_t kLedgerRecordHeadBytes = 32;

std::vector<std::byte> LedgerHead(LedgerKind kind);

// Appends a record that begins at `offset` of the file. Its payload is at most
// limits::kLedgerRecordBytesMax (CHECK).
void AppendLedgerRecord(const RawRecord& record, std::vector<std::byte>& file, uint64_t offset);

// What was found at an offset. Fields after the first wrong one have no meaning.
struct LedgerRecordView {
  enum class State : uint8_t {
    kSound,
    kHeadCutOff,      // the file ends in its head
    kHeadDamaged,     // head_check_found is not head_check
    kTooLong,         // its length is above the limit
    kPayloadCutOff,   // the file ends in its payload
    kPayloadDamaged,  // digest_found is not digest
  };
  State state = State::kSound;
  uint32_t length = 0;
  uint32_t type = 0;
  uint64_t head_check = 0;        // as stored
  uint64_t head_check_found = 0;  // of the bytes before
  Digest digest;                  // as stored
  Digest digest_found;            // of the payload
  ByteSpan payload;
};

// `offset` is at most the file's size.
LedgerRecordView LookAtLedgerRecord(ByteSpan file, uint64_t offset);

// A record's type and payload; the payload lies in the parsed bytes.
struct LedgerRecord {
  uint32_t type = 0;
  ByteSpan payload;
};

// Returns the record at `offset`, if there is a sound one.
std::optional<LedgerRecord> ParseLedgerRecord(ByteSpan file, uint64_t offset);

// The offset of the first sound record at or after `offset`.
std::optional<uint64_t> FindLedgerRecord(ByteSpan file, uint64_t offset);

// For an `offset` without a sound record: why the bytes from there on cannot be one torn append
// (every append is synced before the next begins); nullopt when they can be.
std::optional<std::string> LedgerTailDamage(ByteSpan file, uint64_t offset);

}  // namespace dws
