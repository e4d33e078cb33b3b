#include "tools/dwsctl/inspect/inspect_ledger.h"

#include <fmt/format.h>

#include <optional>
#include <variant>

#include "common/ledger/ledger_bytes.h"
#include "common/ledger/ledger_state.h"
#include "common/model/limits.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

std::string FormatWord(std::string_view name, uint64_t word) {
  const bool is_hash = name.find("id,") != name.npos || name.find("lane") != name.npos;
  return is_hash ? fmt::format("{:016x}", word) : fmt::format("{}", word);
}

std::string Version(const std::optional<WeightVersion>& version) {
  return FormatVersion(version.has_value() ? version->value() : 0);
}

using Facts = std::vector<std::pair<std::string, std::string>>;

Facts FactsOf(const SenderLedgerState& state) {
  Facts facts = {{"stream", state.stream().has_value() ? ToString(*state.stream()) : "none"},
                 {"rank epoch", fmt::format("{}", state.rank_epoch().value())},
                 {"last version", Version(state.last_version())},
                 {"published versions", fmt::format("{}", state.published().size())}};
  return facts;
}

Facts FactsOf(const ReceiverLedgerState& state) {
  Facts facts = {{"stream", state.stream().has_value() ? ToString(*state.stream()) : "none"}};
  if (state.committed().has_value()) {
    facts.emplace_back("committed version",
                       fmt::format("{} of stream {}", state.committed()->version.value(),
                                   ToString(state.committed()->stream)));
  } else {
    facts.emplace_back("committed version", "none");
  }
  if (state.open_intent().has_value()) {
    facts.emplace_back("open commit intent",
                       fmt::format("for version {}: memory may hold a mixture until the receiver "
                                   "has compared it",
                                   state.open_intent()->target.value()));
  }
  if (state.decided().has_value()) {
    facts.emplace_back("group's decision", fmt::format("version {} of stream {}, not settled",
                                                       state.decided()->version.value(),
                                                       ToString(state.decided()->stream)));
  }
  return facts;
}

class LedgerInspection {
 public:
  LedgerInspection(const ByteFile& file, const InspectLimits& limits, const InspectSink& sink)
      : file_(file), limits_(limits), sink_(sink) {}

  Result<uint64_t> Run() {
    DWS_ASSIGN_OR_RETURN(bytes_, file_.Read(0, limits::kLedgerBytesMax));
    if (Head()) Records();
    if (bytes_.size() < file_.size_bytes()) {
      Problem(bytes_.size(),
              fmt::format("larger than any ledger ({} bytes at most); the rest was not read",
                          limits::kLedgerBytesMax));
    }
    Facts facts = std::visit([](const auto& state) { return FactsOf(state); }, state_);
    facts.emplace_back("records", fmt::format("{}", records_));
    Tell(SummaryItem{.facts = std::move(facts), .problems = problems_});
    return problems_;
  }

 private:
  void Tell(const InspectItem& item) {
    if (wanted_) wanted_ = sink_(item);
  }
  void Problem(uint64_t offset, std::string message) {
    ++problems_;
    Tell(ProblemItem{.offset = offset, .message = std::move(message)});
  }
  void Field(uint64_t offset, uint64_t size_bytes, std::string_view name, std::string value) {
    Tell(FieldItem{.offset = offset,
                   .size_bytes = size_bytes,
                   .name = std::string(name),
                   .value = std::move(value)});
  }
  bool Head();
  void Records();
  void Record(uint64_t offset, const LedgerRecordView& view);
  void Unsound(uint64_t offset, const LedgerRecordView& view);
  void Apply(uint64_t offset, const LedgerRecordView& view);
  uint64_t FirstShown() const;

  const ByteFile& file_;
  const InspectLimits limits_;
  const InspectSink& sink_;
  std::vector<std::byte> bytes_;
  std::variant<SenderLedgerState, ReceiverLedgerState> state_;
  uint64_t records_ = 0;
  uint64_t problems_ = 0;
  bool wanted_ = true;
};

// False: the rest of the file cannot be read.
bool LedgerInspection::Head() {
  const uint64_t size = std::min<uint64_t>(bytes_.size(), kLedgerHeadBytes);
  Tell(SectionItem{.name = "head", .offset = 0, .size_bytes = size});
  if (size < kLedgerHeadBytes) {
    Problem(size, fmt::format("cut off: a ledger's head has {} bytes", kLedgerHeadBytes));
    return false;
  }
  const std::string_view magic = AsText(ByteSpan(bytes_).first(kLedgerMagic.size()));
  Field(0, 8, "magic", std::string(magic));
  if (magic != kLedgerMagic) Problem(0, fmt::format("magic: expected {}", kLedgerMagic));
  const auto version = LoadLe<uint32_t>(bytes_.data() + 8);
  Field(8, 4, "format version", fmt::format("{}", version));
  const auto kind = LoadLe<uint32_t>(bytes_.data() + 12);
  const bool known = kind == static_cast<uint32_t>(LedgerKind::kSender) ||
                     kind == static_cast<uint32_t>(LedgerKind::kReceiver);
  Field(12, 4, "kind",
        known ? fmt::format("{} ({})", kind, ToString(static_cast<LedgerKind>(kind)))
              : fmt::format("{}", kind));
  if (version != kLedgerFormatVersion) {
    Problem(8, fmt::format("format version: this build knows {}", kLedgerFormatVersion));
    return false;
  }
  if (!known) {
    Problem(12, "kind: expected 1 (sender) or 2 (receiver)");
    return false;
  }
  if (kind == static_cast<uint32_t>(LedgerKind::kReceiver)) state_ = ReceiverLedgerState();
  return true;
}

// The number of the first record that is shown. If there are many, only the last ones are shown.
uint64_t LedgerInspection::FirstShown() const {
  uint64_t count = 0;
  std::optional<uint64_t> at = kLedgerHeadBytes;
  while (at.has_value() && *at < bytes_.size()) {
    const auto record = ParseLedgerRecord(bytes_, *at);
    if (record.has_value()) ++count;
    at = record.has_value() ? *at + kLedgerRecordHeadBytes + record->payload.size()
                            : FindLedgerRecord(bytes_, *at + 1);
  }
  return count > limits_.records ? count - limits_.records : 0;
}

void LedgerInspection::Records() {
  const uint64_t first_shown = FirstShown();
  if (first_shown > 0) {
    Tell(OmissionItem{fmt::format("{} older records, checked and not shown", first_shown)});
  }
  uint64_t offset = kLedgerHeadBytes;
  while (offset < bytes_.size() && wanted_) {
    const LedgerRecordView view = LookAtLedgerRecord(bytes_, offset);
    if (view.state == LedgerRecordView::State::kSound) {
      if (records_++ >= first_shown) Record(offset, view);
      Apply(offset, view);
      offset += kLedgerRecordHeadBytes + view.length;
      continue;
    }
    Unsound(offset, view);
    offset = FindLedgerRecord(bytes_, offset + 1).value_or(bytes_.size());
  }
}

void LedgerInspection::Record(uint64_t offset, const LedgerRecordView& view) {
  const std::string_view name = RecordTypeName(view.type);
  Tell(SectionItem{
      .name = fmt::format("record {}{}{}", records_ - 1, name.empty() ? "" : ", ", name),
      .offset = offset,
      .size_bytes = kLedgerRecordHeadBytes + view.length});
  Field(offset, 4, "payload length", fmt::format("{}", view.length));
  Field(offset + 4, 4, "type", fmt::format("{}", view.type));
  Field(offset + 8, 8, "head check", fmt::format("{:016x}", view.head_check));
  Field(offset + 16, 16, "digest of the payload", ToString(view.digest));
  const auto names = RecordWordNames(view.type);
  const uint64_t begin = offset + kLedgerRecordHeadBytes;
  for (size_t i = 0; (i + 1) * 8 <= view.payload.size(); ++i) {
    const std::string_view word = i < names.size() ? names[i] : std::string_view("unknown");
    Field(begin + i * 8, 8, word, FormatWord(word, LoadLe<uint64_t>(view.payload.data() + i * 8)));
  }
}

void LedgerInspection::Apply(uint64_t offset, const LedgerRecordView& view) {
  const Status status = std::visit(
      [&view](auto& state) -> Status {
        if constexpr (std::decay_t<decltype(state)>::kKind == LedgerKind::kSender) {
          DWS_ASSIGN_OR_RETURN(const auto record, DecodeSenderRecord(view.type, view.payload));
          return state.Apply(record);
        } else {
          DWS_ASSIGN_OR_RETURN(const auto record, DecodeReceiverRecord(view.type, view.payload));
          return state.Apply(record);
        }
      },
      state_);
  if (!status.ok()) Problem(offset, std::string(Message(status)));
}

void LedgerInspection::Unsound(uint64_t offset, const LedgerRecordView& view) {
  using State = LedgerRecordView::State;
  const uint64_t left = bytes_.size() - offset;
  uint64_t at = offset;
  std::string why;
  switch (view.state) {
    case State::kSound:
      return;
    case State::kHeadCutOff:
      at = bytes_.size();
      why = fmt::format("cut off: {} bytes of a record's head, {} expected", left,
                        kLedgerRecordHeadBytes);
      break;
    case State::kHeadDamaged:
      at = offset + 8;
      why = fmt::format("head check {:016x}, the bytes before have {:016x}", view.head_check,
                        view.head_check_found);
      break;
    case State::kTooLong:
      why = fmt::format("a payload of {} bytes, at most {} are possible", view.length,
                        limits::kLedgerRecordBytesMax);
      break;
    case State::kPayloadCutOff:
      at = bytes_.size();
      why = fmt::format("cut off: {} of the payload's {} bytes", left - kLedgerRecordHeadBytes,
                        view.length);
      break;
    case State::kPayloadDamaged:
      at = offset + 16;
      why = fmt::format("digest {}, the payload has {}", ToString(view.digest),
                        ToString(view.digest_found));
      break;
  }
  const std::optional<std::string> damage = LedgerTailDamage(bytes_, offset);
  Tell(SectionItem{.name = "no record", .offset = offset, .size_bytes = left});
  Problem(at,
          fmt::format("{}; {}", why,
                      damage.has_value()
                          ? fmt::format("the daemon refuses this file: {}", *damage)
                          : "the rest of a torn append: the daemon cuts it off when it starts"));
}

}  // namespace

Result<uint64_t> InspectLedger(const ByteFile& file, const InspectLimits& limits,
                               const InspectSink& sink) {
  return LedgerInspection(file, limits, sink).Run();
}

}  // namespace dws::dwsctl
