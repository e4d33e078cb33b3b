// A ledger in memory: it "survives" as long as the test keeps it.
#pragma once

#include <optional>
#include <utility>
#include <vector>

#include "common/ledger/version_ledger.h"

namespace dws {

template <typename State>
class MemoryVersionLedger final : public VersionLedger<State> {
 public:
  const State& state() const override { return state_; }

  Status Append(const typename State::Record& record) override {
    State next = state_;
    DWS_RETURN_IF_ERROR(next.Apply(record));
    if (next_error_.has_value()) {
      Status error = *std::move(next_error_);
      next_error_.reset();
      return error;
    }
    state_ = std::move(next);
    records_.push_back(record);
    return OkStatus();
  }

  // All appended records, in order.
  const std::vector<typename State::Record>& records() const { return records_; }
  // The next Append that State::Apply accepts fails with `error`.
  void FailNext(Status error) { next_error_ = std::move(error); }

 private:
  State state_;
  std::vector<typename State::Record> records_;
  std::optional<Status> next_error_;
};

using MemorySenderLedger = MemoryVersionLedger<SenderLedgerState>;
using MemoryReceiverLedger = MemoryVersionLedger<ReceiverLedgerState>;

}  // namespace dws
