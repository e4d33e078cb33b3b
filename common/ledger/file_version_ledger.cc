#include "common/ledger/file_version_ledger.h"

#include <type_traits>
#include <utility>
#include <vector>

#include "common/ledger/file_ledger.h"
#include "common/model/limits.h"

namespace dws {
namespace {

template <typename State>
Result<typename State::Record> Decode(uint32_t type, ByteSpan payload) {
  if constexpr (std::is_same_v<State, SenderLedgerState>) {
    return DecodeSenderRecord(type, payload);
  } else {
    return DecodeReceiverRecord(type, payload);
  }
}

template <typename State>
class FileVersionLedger final : public VersionLedger<State> {
 public:
  FileVersionLedger(State state, std::unique_ptr<FileLedger> file)
      : state_(std::move(state)), file_(std::move(file)) {}

  const State& state() const override { return state_; }

  Status Append(const typename State::Record& record) override {
    State next = state_;
    DWS_RETURN_IF_ERROR(next.Apply(record));
    if (file_->needs_rewrite() || file_->size_bytes() > limits::kLedgerCompactBytes) {
      DWS_RETURN_IF_ERROR(Compact());
    }
    DWS_RETURN_IF_ERROR(file_->Append(EncodeRecord(record)));
    state_ = std::move(next);
    return OkStatus();
  }

 private:
  Status Compact() {
    std::vector<RawRecord> raw;
    for (const auto& record : state_.Records()) raw.push_back(EncodeRecord(record));
    return file_->Rewrite(raw);
  }

  State state_;
  const std::unique_ptr<FileLedger> file_;
};

template <typename State>
Result<std::unique_ptr<VersionLedger<State>>> OpenLedger(FileSystem& file_system,
                                                         const std::string& state_folder) {
  State state;
  DWS_ASSIGN_OR_RETURN(
      std::unique_ptr<FileLedger> file,
      FileLedger::Open(file_system,
                       fmt::format("{}/{}.ledger", state_folder, ToString(State::kKind)),
                       State::kKind, [&state](uint32_t type, ByteSpan payload, uint64_t) -> Status {
                         DWS_ASSIGN_OR_RETURN(const auto record, Decode<State>(type, payload));
                         return state.Apply(record);
                       }));
  return std::make_unique<FileVersionLedger<State>>(std::move(state), std::move(file));
}

}  // namespace

Result<std::unique_ptr<SenderLedger>> OpenSenderLedger(FileSystem& file_system,
                                                       const std::string& state_folder) {
  return OpenLedger<SenderLedgerState>(file_system, state_folder);
}

Result<std::unique_ptr<ReceiverLedger>> OpenReceiverLedger(FileSystem& file_system,
                                                           const std::string& state_folder) {
  return OpenLedger<ReceiverLedgerState>(file_system, state_folder);
}

}  // namespace dws
