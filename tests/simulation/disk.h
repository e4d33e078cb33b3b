// A ledger on a simulated disk: an append takes time, is acknowledged when durable, and after a
// crash before that the next start may or may not find it, as with a real file. Which record may
// follow which is the product's own state (common/ledger/ledger_state).
#pragma once

#include <deque>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/ledger/ledger_state.h"
#include "tests/simulation/course.h"
#include "tests/simulation/process.h"

namespace dws::sim {

template <typename State>
class Disk {
 public:
  using Record = typename State::Record;
  using Done = std::function<void(const Status&)>;

  explicit Disk(Process& owner) : owner_(owner) {}

  // What was acknowledged, or found by the last start.
  const State& state() const { return state_; }

  // Appends run one after the other, in the order of the calls.
  void Append(Record record, Done done) {
    queue_.push_back({std::move(record), std::move(done)});
    if (queue_.size() == 1) Begin();
  }
  void FailNext(bool fails) { fail_next_ = fails; }
  // Test only: acknowledges records that a crash then loses.
  void DropSyncs() { synced_ = false; }

  void OnCrash() {
    Course& course = owner_.course();
    if (!queue_.empty() && course.random.Chance(500)) Keep(queue_.front().record);
    if (unsure_.has_value() && course.random.Chance(500)) Keep(*unsure_);
    queue_.clear();
    unsure_.reset();
    fail_next_ = false;
    state_ = durable_;
  }
  // Replaces the disk by an empty one.
  void Wipe() { state_ = durable_ = State(); }

 private:
  struct Job {
    Record record;
    Done done;
  };

  void Begin() {
    State next = state_;
    if (const Status status = next.Apply(queue_.front().record); !status.ok()) return End(status);
    const Time latency = kRoundTrip / 8 + owner_.course().random.Below(kRoundTrip / 2);
    owner_.After(latency, [this] {
      if (std::exchange(fail_next_, false)) {
        unsure_ = queue_.front().record;
        return End(ResourceExhaustedError("the disk is full"));
      }
      DWS_CHECK(state_.Apply(queue_.front().record).ok());
      unsure_.reset();  // the file was repaired first
      if (synced_) durable_ = state_;
      End(OkStatus());
    });
  }
  void End(const Status& status) {
    const Job job = std::move(queue_.front());
    queue_.pop_front();
    if (!queue_.empty()) Begin();
    job.done(status);
  }
  void Keep(const Record& record) {
    State found = durable_;
    if (!found.Apply(record).ok()) return;
    durable_ = std::move(found);
    owner_.course().See("a record that nobody was told of is found");
  }

  Process& owner_;
  State state_;
  State durable_;
  std::deque<Job> queue_;
  std::optional<Record> unsure_;  // of a failed append
  bool fail_next_ = false;
  bool synced_ = true;
};

using SenderDisk = Disk<SenderLedgerState>;
using ReceiverDisk = Disk<ReceiverLedgerState>;

}  // namespace dws::sim
