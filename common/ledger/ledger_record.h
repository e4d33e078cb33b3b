// The records of a ledger as values, and their bytes (LEDGER.md). Pure.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string_view>
#include <variant>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/digest/digest.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"

namespace dws {

// Which daemon's ledger a file is; stored in its head.
enum class LedgerKind : uint32_t { kSender = 1, kReceiver = 2 };
std::string_view ToString(LedgerKind kind);

// Sender: this rank serves `stream`. A higher epoch in the same stream means that the snapshot was
// lost and that no version up to now can be served any longer; numbers continue from last_version.
struct StreamOpened {
  StreamId stream;
  RankEpoch rank_epoch;
  // Only compaction sets it: the last version published in an earlier epoch.
  std::optional<WeightVersion> last_version = std::nullopt;
  friend bool operator==(const StreamOpened&, const StreamOpened&) = default;
};

// Sender: `version` is captured and sealed. Its announcement may follow.
struct VersionPublished {
  StreamId stream;
  WeightVersion version;
  std::optional<WeightVersion> base;  // none: served in full only
  Digest state_token;
  friend bool operator==(const VersionPublished&, const VersionPublished&) = default;
};

// Receiver: follows `stream` from now on and never again a lower incarnation, unless an operator
// has `stream` forgotten.
struct StreamAccepted {
  StreamId stream;
  friend bool operator==(const StreamAccepted&, const StreamAccepted&) = default;
};

// Receiver: the engine's memory of this generation is about to be written.
struct CommitIntent {
  StreamId stream;
  // None: the base is not known, and the commit starts from whatever the memory holds.
  std::optional<WeightVersion> base;
  WeightVersion target;
  Generation generation;
  friend bool operator==(const CommitIntent&, const CommitIntent&) = default;
};

// Receiver: the open intent is carried out; memory holds its target.
struct VersionCommitted {
  StreamId stream;
  WeightVersion version;
  friend bool operator==(const VersionCommitted&, const VersionCommitted&) = default;
};

// Receiver: the open intent was abandoned before a byte was written (the pause failed, or the
// generation had changed). Only the process that wrote the intent can know this.
struct CommitAbandoned {
  StreamId stream;
  WeightVersion target;
  friend bool operator==(const CommitAbandoned&, const CommitAbandoned&) = default;
};

// Receiver, as the leader of a commit group: all members have staged `version`, and COMMITs may be
// sent. From now on the group commits no lower version.
struct GroupDecided {
  StreamId stream;
  WeightVersion version;
  friend bool operator==(const GroupDecided&, const GroupDecided&) = default;
};

// Receiver, as a leader: all members are known to hold `version`. The open decision was carried
// out, or it reached no member.
struct GroupSettled {
  StreamId stream;
  WeightVersion version;
  friend bool operator==(const GroupSettled&, const GroupSettled&) = default;
};

// Both: an operator ordered this daemon to forget the stream that it opened or accepted last. This
// is the only record that lowers the fence.
struct StreamForgotten {
  StreamId stream;
  friend bool operator==(const StreamForgotten&, const StreamForgotten&) = default;
};

// Sender: the ledger began with only the fence. It is unknown which version numbers of the stream
// are used up, so the stream is not opened again.
struct NumbersLost {
  StreamId stream;
  friend bool operator==(const NumbersLost&, const NumbersLost&) = default;
};

using SenderRecord = std::variant<StreamOpened, VersionPublished, StreamForgotten, NumbersLost>;
using ReceiverRecord = std::variant<StreamAccepted, CommitIntent, VersionCommitted, CommitAbandoned,
                                    GroupDecided, GroupSettled, StreamForgotten>;

// A record as a ledger file stores it: type number and payload.
struct RawRecord {
  uint32_t type = 0;
  std::vector<std::byte> payload;
};

RawRecord EncodeRecord(const SenderRecord& record);
RawRecord EncodeRecord(const ReceiverRecord& record);

// DATA_LOSS: the payload does not have the size of its type, or has a zero where a version must be.
// FAILED_PRECONDITION: the type is unknown to this build (a newer DWS wrote it) or belongs to the
// other kind.
Result<SenderRecord> DecodeSenderRecord(uint32_t type, ByteSpan payload);
Result<ReceiverRecord> DecodeReceiverRecord(uint32_t type, ByteSpan payload);

// The names in LEDGER.md of a type and of the u64s of its payload; "" and none if it is unknown.
std::string_view RecordTypeName(uint32_t type);
std::span<const std::string_view> RecordWordNames(uint32_t type);

}  // namespace dws
