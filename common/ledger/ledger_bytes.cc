#include "common/ledger/ledger_bytes.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// Covers the length and the type, so that a damaged length is found before it is used.
uint64_t HeadCheck(const std::byte* head, uint64_t offset) {
  return MixWord(offset, LoadLe<uint64_t>(head)).lane0;
}

}  // namespace

std::vector<std::byte> LedgerHead(LedgerKind kind) {
  std::vector<std::byte> head(kLedgerHeadBytes);
  std::memcpy(head.data(), kLedgerMagic.data(), kLedgerMagic.size());
  StoreLe(head.data() + 8, kLedgerFormatVersion);
  StoreLe(head.data() + 12, static_cast<uint32_t>(kind));
  return head;
}

void AppendLedgerRecord(const RawRecord& record, std::vector<std::byte>& file, uint64_t offset) {
  DWS_CHECK(record.payload.size() <= limits::kLedgerRecordBytesMax);
  const size_t begin = file.size();
  file.resize(begin + kLedgerRecordHeadBytes);
  std::byte* const head = file.data() + begin;
  StoreLe(head, static_cast<uint32_t>(record.payload.size()));
  StoreLe(head + 4, record.type);
  StoreLe(head + 8, HeadCheck(head, offset));
  const Digest digest = DigestBytes(record.payload, offset);
  StoreLe(head + 16, digest.lane0);
  StoreLe(head + 24, digest.lane1);
  file.insert(file.end(), record.payload.begin(), record.payload.end());
  DWS_CHECK(file.size() - begin == kLedgerRecordHeadBytes + record.payload.size());
}

LedgerRecordView LookAtLedgerRecord(ByteSpan file, uint64_t offset) {
  using State = LedgerRecordView::State;
  DWS_CHECK(offset <= file.size());
  LedgerRecordView view;
  const auto ends_as = [&view](State state) {
    view.state = state;
    return view;
  };
  if (file.size() - offset < kLedgerRecordHeadBytes) return ends_as(State::kHeadCutOff);
  const std::byte* const head = file.data() + offset;
  view.length = LoadLe<uint32_t>(head);
  view.type = LoadLe<uint32_t>(head + 4);
  view.head_check = LoadLe<uint64_t>(head + 8);
  view.head_check_found = HeadCheck(head, offset);
  view.digest = {.lane0 = LoadLe<uint64_t>(head + 16), .lane1 = LoadLe<uint64_t>(head + 24)};
  if (view.head_check != view.head_check_found) return ends_as(State::kHeadDamaged);
  if (view.length > limits::kLedgerRecordBytesMax) return ends_as(State::kTooLong);
  if (view.length > file.size() - offset - kLedgerRecordHeadBytes) {
    return ends_as(State::kPayloadCutOff);
  }
  view.payload = file.subspan(offset + kLedgerRecordHeadBytes, view.length);
  view.digest_found = DigestBytes(view.payload, offset);
  return ends_as(view.digest == view.digest_found ? State::kSound : State::kPayloadDamaged);
}

std::optional<LedgerRecord> ParseLedgerRecord(ByteSpan file, uint64_t offset) {
  const LedgerRecordView view = LookAtLedgerRecord(file, offset);
  if (view.state != LedgerRecordView::State::kSound) return std::nullopt;
  return LedgerRecord{.type = view.type, .payload = view.payload};
}

std::optional<uint64_t> FindLedgerRecord(ByteSpan file, uint64_t offset) {
  for (uint64_t at = offset; at < file.size(); ++at) {
    if (ParseLedgerRecord(file, at).has_value()) return at;
  }
  return std::nullopt;
}

std::optional<std::string> LedgerTailDamage(ByteSpan file, uint64_t offset) {
  DWS_CHECK(offset <= file.size());
  const ByteSpan tail = file.subspan(offset);
  const bool zeros =
      std::all_of(tail.begin(), tail.end(), [](std::byte byte) { return byte == std::byte{0}; });
  if (zeros) return std::nullopt;
  if (tail.size() > kLedgerRecordHeadBytes + limits::kLedgerRecordBytesMax) {
    return fmt::format("and {} bytes follow, more than one record", tail.size());
  }
  const std::optional<uint64_t> behind = FindLedgerRecord(file, offset + 1);
  if (!behind.has_value()) return std::nullopt;
  return fmt::format("a valid one follows at offset {}", *behind);
}

}  // namespace dws
