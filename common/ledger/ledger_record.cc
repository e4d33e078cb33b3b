#include "common/ledger/ledger_record.h"

#include <array>
#include <initializer_list>

namespace dws {
namespace {

enum RecordType : uint32_t {
  kStreamOpened = 1,
  kVersionPublished = 2,
  kOpenedForgotten = 3,
  kNumbersLost = 4,
  kStreamAccepted = 16,
  kCommitIntent = 17,
  kVersionCommitted = 18,
  kCommitAbandoned = 19,
  kGroupDecided = 20,
  kGroupSettled = 21,
  kAcceptedForgotten = 22,
};

RawRecord Pack(RecordType type, std::initializer_list<uint64_t> words) {
  RawRecord raw{.type = type, .payload = std::vector<std::byte>(words.size() * 8)};
  std::byte* at = raw.payload.data();
  for (const uint64_t word : words) {
    StoreLe(at, word);
    at += 8;
  }
  return raw;
}

template <size_t kWords>
Result<std::array<uint64_t, kWords>> Unpack(std::string_view name, ByteSpan payload) {
  if (payload.size() != kWords * 8) {
    return DataLossError("{}: expected a payload of {} bytes, found {}", name, kWords * 8,
                         payload.size());
  }
  std::array<uint64_t, kWords> words;
  for (size_t i = 0; i < kWords; ++i) words[i] = LoadLe<uint64_t>(payload.data() + i * 8);
  return words;
}

uint64_t OrZero(const std::optional<WeightVersion>& version) {
  return version.has_value() ? version->value() : 0;
}

std::optional<WeightVersion> NoneIfZero(uint64_t version) {
  if (version == 0) return std::nullopt;
  return WeightVersion(version);
}

Result<WeightVersion> VersionNumber(std::string_view name, uint64_t version) {
  if (version == 0) return DataLossError("{}: expected a version, found 0", name);
  return WeightVersion(version);
}

Status UnknownType(uint32_t type, LedgerKind kind) {
  return FailedPreconditionError(
      "record type {} is unknown in the ledger of a {}: a newer DWS wrote it; start that version",
      type, ToString(kind));
}

struct Encoder {
  RecordType forgotten;  // StreamForgotten's type in this kind of ledger

  RawRecord operator()(const StreamOpened& r) const {
    return Pack(kStreamOpened, {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo,
                                r.rank_epoch.value(), OrZero(r.last_version)});
  }
  RawRecord operator()(const VersionPublished& r) const {
    return Pack(kVersionPublished,
                {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo, r.version.value(),
                 OrZero(r.base), r.state_token.lane0, r.state_token.lane1});
  }
  RawRecord operator()(const StreamAccepted& r) const {
    return Pack(kStreamAccepted, {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo});
  }
  RawRecord operator()(const CommitIntent& r) const {
    return Pack(kCommitIntent, {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo,
                                OrZero(r.base), r.target.value(), r.generation.value()});
  }
  RawRecord operator()(const VersionCommitted& r) const {
    return Pack(kVersionCommitted,
                {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo, r.version.value()});
  }
  RawRecord operator()(const CommitAbandoned& r) const {
    return Pack(kCommitAbandoned,
                {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo, r.target.value()});
  }
  RawRecord operator()(const GroupDecided& r) const {
    return Pack(kGroupDecided,
                {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo, r.version.value()});
  }
  RawRecord operator()(const GroupSettled& r) const {
    return Pack(kGroupSettled,
                {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo, r.version.value()});
  }
  RawRecord operator()(const StreamForgotten& r) const {
    return Pack(forgotten, {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo});
  }
  RawRecord operator()(const NumbersLost& r) const {
    return Pack(kNumbersLost, {r.stream.incarnation, r.stream.id_hi, r.stream.id_lo});
  }
};

}  // namespace

std::string_view ToString(LedgerKind kind) {
  switch (kind) {
    case LedgerKind::kSender:
      return "sender";
    case LedgerKind::kReceiver:
      return "receiver";
  }
  return "unknown";
}

RawRecord EncodeRecord(const SenderRecord& record) {
  return std::visit(Encoder{kOpenedForgotten}, record);
}
RawRecord EncodeRecord(const ReceiverRecord& record) {
  return std::visit(Encoder{kAcceptedForgotten}, record);
}

Result<SenderRecord> DecodeSenderRecord(uint32_t type, ByteSpan payload) {
  switch (type) {
    case kStreamOpened: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<5>("StreamOpened", payload));
      return StreamOpened{.stream = {w[0], w[1], w[2]},
                          .rank_epoch = RankEpoch(w[3]),
                          .last_version = NoneIfZero(w[4])};
    }
    case kVersionPublished: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<7>("VersionPublished", payload));
      DWS_ASSIGN_OR_RETURN(const WeightVersion version, VersionNumber("VersionPublished", w[3]));
      return VersionPublished{.stream = {w[0], w[1], w[2]},
                              .version = version,
                              .base = NoneIfZero(w[4]),
                              .state_token = {.lane0 = w[5], .lane1 = w[6]}};
    }
    case kOpenedForgotten: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<3>("StreamForgotten", payload));
      return StreamForgotten{.stream = {w[0], w[1], w[2]}};
    }
    case kNumbersLost: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<3>("NumbersLost", payload));
      return NumbersLost{.stream = {w[0], w[1], w[2]}};
    }
    default:
      return UnknownType(type, LedgerKind::kSender);
  }
}

Result<ReceiverRecord> DecodeReceiverRecord(uint32_t type, ByteSpan payload) {
  switch (type) {
    case kStreamAccepted: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<3>("StreamAccepted", payload));
      return StreamAccepted{.stream = {w[0], w[1], w[2]}};
    }
    case kCommitIntent: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<6>("CommitIntent", payload));
      DWS_ASSIGN_OR_RETURN(const WeightVersion target, VersionNumber("CommitIntent", w[4]));
      return CommitIntent{.stream = {w[0], w[1], w[2]},
                          .base = NoneIfZero(w[3]),
                          .target = target,
                          .generation = Generation(w[5])};
    }
    case kVersionCommitted: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<4>("VersionCommitted", payload));
      DWS_ASSIGN_OR_RETURN(const WeightVersion version, VersionNumber("VersionCommitted", w[3]));
      return VersionCommitted{.stream = {w[0], w[1], w[2]}, .version = version};
    }
    case kCommitAbandoned: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<4>("CommitAbandoned", payload));
      DWS_ASSIGN_OR_RETURN(const WeightVersion target, VersionNumber("CommitAbandoned", w[3]));
      return CommitAbandoned{.stream = {w[0], w[1], w[2]}, .target = target};
    }
    case kGroupDecided: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<4>("GroupDecided", payload));
      DWS_ASSIGN_OR_RETURN(const WeightVersion version, VersionNumber("GroupDecided", w[3]));
      return GroupDecided{.stream = {w[0], w[1], w[2]}, .version = version};
    }
    case kGroupSettled: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<4>("GroupSettled", payload));
      DWS_ASSIGN_OR_RETURN(const WeightVersion version, VersionNumber("GroupSettled", w[3]));
      return GroupSettled{.stream = {w[0], w[1], w[2]}, .version = version};
    }
    case kAcceptedForgotten: {
      DWS_ASSIGN_OR_RETURN(const auto w, Unpack<3>("StreamForgotten", payload));
      return StreamForgotten{.stream = {w[0], w[1], w[2]}};
    }
    default:
      return UnknownType(type, LedgerKind::kReceiver);
  }
}

std::string_view RecordTypeName(uint32_t type) {
  switch (type) {
    case kStreamOpened:
      return "StreamOpened";
    case kVersionPublished:
      return "VersionPublished";
    case kStreamAccepted:
      return "StreamAccepted";
    case kCommitIntent:
      return "CommitIntent";
    case kVersionCommitted:
      return "VersionCommitted";
    case kCommitAbandoned:
      return "CommitAbandoned";
    case kGroupDecided:
      return "GroupDecided";
    case kGroupSettled:
      return "GroupSettled";
    case kOpenedForgotten:
    case kAcceptedForgotten:
      return "StreamForgotten";
    case kNumbersLost:
      return "NumbersLost";
    default:
      return "";
  }
}

std::span<const std::string_view> RecordWordNames(uint32_t type) {
  // In the order in which Encoder packs them.
  static constexpr std::array<std::string_view, 5> kOpened = {
      "stream incarnation", "stream id, high half", "stream id, low half", "rank epoch",
      "last version of earlier epochs"};
  static constexpr std::array<std::string_view, 7> kPublished = {
      "stream incarnation", "stream id, high half", "stream id, low half", "version",
      "base version",       "state token, lane 0",  "state token, lane 1"};
  static constexpr std::array<std::string_view, 6> kIntent = {
      "stream incarnation", "stream id, high half", "stream id, low half",
      "base version",       "target version",       "generation"};
  static constexpr std::array<std::string_view, 4> kVersioned = {
      "stream incarnation", "stream id, high half", "stream id, low half", "version"};
  switch (type) {
    case kStreamOpened:
      return kOpened;
    case kVersionPublished:
      return kPublished;
    case kStreamAccepted:
    case kOpenedForgotten:
    case kNumbersLost:
    case kAcceptedForgotten:
      return std::span(kVersioned).first(3);
    case kCommitIntent:
      return kIntent;
    case kVersionCommitted:
    case kCommitAbandoned:
    case kGroupDecided:
    case kGroupSettled:
      return kVersioned;
    default:
      return {};
  }
}

}  // namespace dws
