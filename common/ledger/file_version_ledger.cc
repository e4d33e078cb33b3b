// The fence is written before the record that changes it, so it is never below the ledger. After a
// crash between the two it is above, and the next start raises the ledger to it.
#include "common/ledger/file_version_ledger.h"

#include <functional>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/base/log/log.h"
#include "common/ledger/damaged_files.h"
#include "common/ledger/fence.h"
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
  FileVersionLedger(State state, std::unique_ptr<FileLedger> file, FenceFile fence)
      : state_(std::move(state)), file_(std::move(file)), fence_(std::move(fence)) {}

  const State& state() const override { return state_; }

  Status Append(const typename State::Record& record) override {
    State next = state_;
    DWS_RETURN_IF_ERROR(next.Apply(record));
    DWS_RETURN_IF_ERROR(fence_.Keep(next.fence()));
    if (file_->needs_rewrite() || file_->size_bytes() > limits::kLedgerCompactBytes) {
      DWS_RETURN_IF_ERROR(Compact());
    }
    DWS_RETURN_IF_ERROR(file_->Append(EncodeRecord(record)));
    state_ = std::move(next);
    return OkStatus();
  }

  // Call once after opening. Raises the ledger or the fence to the higher of the two. `aside` moves
  // a folder away that is in the place of the fence.
  Status MeetFence(const std::function<Status(const Status& why)>& aside) {
    const Result<std::optional<Fence>> found = fence_.Read();
    if (absl::IsFailedPrecondition(found.status())) {
      DWS_RETURN_IF_ERROR(aside(found.status()));
    } else if (!found.ok() && !absl::IsNotFound(found.status())) {
      LogWarning("ledger_fence_replaced", {{"reason", Message(found.status())}});
    }
    const std::optional<Fence> own = state_.fence();
    if (found.ok() && found->has_value() && (!own.has_value() || own->BelowOf(**found))) {
      LogWarning("ledger_raised_to_fence", {{"path", fence_.path()},
                                            {"stream", ToString((*found)->stream)},
                                            {"rank_epoch", (*found)->rank_epoch.value()}});
      return Append(State::Restoring(**found));
    }
    return fence_.Keep(own);
  }

 private:
  Status Compact() {
    std::vector<RawRecord> raw;
    for (const auto& record : state_.Records()) raw.push_back(EncodeRecord(record));
    return file_->Rewrite(raw);
  }

  State state_;
  const std::unique_ptr<FileLedger> file_;
  FenceFile fence_;
};

// The first records of a new ledger: see FileLedger::Begin.
template <typename State>
Result<std::vector<RawRecord>> BeginWithFence(FenceFile& file, const LedgerOptions& options,
                                              const Status& damage, State& state) {
  if (!damage.ok() && !options.quarantine_damaged) return damage;
  state = State();  // drops what the records before the damage added
  const Result<std::optional<Fence>> fence = file.Read();
  if (damage.ok() && absl::IsNotFound(fence.status())) return std::vector<RawRecord>();
  if (!fence.ok()) {
    return DataLossError(
        "{} the second copy of the stream's fence cannot be used: {}. Without it the daemon cannot "
        "tell which old trainers to refuse; nothing was changed. Restore either file from a copy; "
        "or stop "
        "every old trainer, move both away and start again",
        damage.ok() ? "there is no ledger, and" : fmt::format("{}. And", Message(damage)),
        Message(fence.status()));
  }
  if (!fence->has_value()) return std::vector<RawRecord>();
  std::vector<RawRecord> raw;
  for (const auto& record : State::BeginningWith(**fence)) {
    DWS_RETURN_IF_ERROR(state.Apply(record));
    raw.push_back(EncodeRecord(record));
  }
  LogWarning("ledger_begins_with_fence", {{"path", file.path()},
                                          {"stream", ToString((*fence)->stream)},
                                          {"rank_epoch", (*fence)->rank_epoch.value()}});
  return raw;
}

// `why` says what is in the place of the fence's file. The ledger is sound and holds the facts of
// the fence.
Status SetFolderAside(FileSystem& file_system, const std::string& path,
                      const LedgerOptions& options, const Status& why) {
  if (!options.quarantine_damaged) {
    return DataLossError(
        "{}; nothing was changed. Move it away, or start with --quarantine-damaged-ledger: it is "
        "set aside, and the fence is written again from the ledger, which is not damaged",
        Message(why));
  }
  DWS_ASSIGN_OR_RETURN(const std::string moved, SetDamagedAside(file_system, path));
  LogError("ledger_quarantined", {{"path", path}, {"moved_to", moved}, {"reason", Message(why)}});
  return OkStatus();
}

template <typename State>
Result<std::unique_ptr<VersionLedger<State>>> OpenLedger(FileSystem& file_system,
                                                         const std::string& state_folder,
                                                         const LedgerOptions& options) {
  State state;
  const std::string stem = fmt::format("{}/{}", state_folder, ToString(State::kKind));
  FenceFile fence(file_system, stem + ".fence", State::kKind);
  const auto replay = [&state](uint32_t type, ByteSpan payload, uint64_t) -> Status {
    DWS_ASSIGN_OR_RETURN(const auto record, Decode<State>(type, payload));
    const Status applied = state.Apply(record);
    return applied.ok() ? applied : DataLossError("{}", Message(applied));
  };
  const auto begin = [&](const Status& damage) {
    return BeginWithFence(fence, options, damage, state);
  };
  DWS_ASSIGN_OR_RETURN(
      std::unique_ptr<FileLedger> file,
      FileLedger::Open(file_system, stem + ".ledger", State::kKind, replay, begin));
  auto ledger = std::make_unique<FileVersionLedger<State>>(std::move(state), std::move(file),
                                                           std::move(fence));
  DWS_RETURN_IF_ERROR(ledger->MeetFence([&](const Status& why) {
    return SetFolderAside(file_system, stem + ".fence", options, why);
  }));
  return ledger;
}

}  // namespace

Result<std::unique_ptr<SenderLedger>> OpenSenderLedger(FileSystem& file_system,
                                                       const std::string& state_folder,
                                                       const LedgerOptions& options) {
  return OpenLedger<SenderLedgerState>(file_system, state_folder, options);
}

Result<std::unique_ptr<ReceiverLedger>> OpenReceiverLedger(FileSystem& file_system,
                                                           const std::string& state_folder,
                                                           const LedgerOptions& options) {
  return OpenLedger<ReceiverLedgerState>(file_system, state_folder, options);
}

}  // namespace dws
