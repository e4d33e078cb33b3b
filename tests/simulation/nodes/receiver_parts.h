// The parts of a simulated receiver that live from its start to its end, wired as in ReceiverApp.
#pragma once

#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "tests/simulation/nodes/receiver.h"

namespace dws::sim {

// The receiver's ledger on the simulated disk; only the worker appends.
class Receiver::DiskLedger final : public ReceiverLedger {
 public:
  explicit DiskLedger(Receiver& owner) : owner_(owner) {}
  const ReceiverLedgerState& state() const override { return owner_.disk_.state(); }
  Status Append(const ReceiverRecord& record) override;

 private:
  Receiver& owner_;
};

// The leader's end of a member's connection.
class Receiver::MemberWire final : public MemberConnection {
 public:
  MemberWire(Receiver& member, LinkPtr link) : member_(member), link_(std::move(link)) {}

  const LinkPtr& link() const { return link_; }
  std::optional<ConnectionId> id;  // the group's number for it

  void Welcome() override;
  void Send(const GroupDown& message) override;
  void Keepalive() override {}
  void Close(const Status&) override { link_->Close(Link::kServer); }

 private:
  Receiver& member_;
  const LinkPtr link_;
};

// The connections to the senders, as a source.
class Receiver::Remote final : public Source {
 public:
  explicit Remote(Receiver& owner) : owner_(owner) {}

  std::string_view name() const override { return "network"; }
  bool brings(Content) const override { return true; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool) override {
    return owner_.ReadDelta(piece, want, spool);
  }
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override {
    return owner_.ReadFull(piece, assembly);
  }

 private:
  Receiver& owner_;
};

// A source that is asked before the network: slow, lying, ending in the middle.
class Receiver::Beside final : public Source {
 public:
  explicit Beside(Receiver& owner) : owner_(owner) {}

  std::string_view name() const override { return "beside"; }
  bool brings(Content) const override { return true; }
  Result<DeltaRead> ReadDelta(const Piece& piece, const DeltaWant& want,
                              const Spool::Options& spool) override;
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;

 private:
  // What goes wrong before anything comes; OK: nothing.
  Status Fault(const char* what);

  Receiver& owner_;
};

struct Receiver::Daemon {
  explicit Daemon(Receiver& owner);
  ~Daemon() { requests.Close(UnavailableError("the receiver is gone")); }

  DiskLedger ledger;
  ChangeSignal changed;
  ThreadPool pool{0};
  Subscription subscription;
  EngineRegistry registry;
  OperatorRequests requests{changed};
  std::unique_ptr<CommitGroup> group;  // null without a group
  Beside beside;
  Remote remote;
  SourceChain sources;
  Worker worker;
};

// The callback may be called late or twice: it counts only while its wait is on the fiber's stack.
template <typename T>
T Receiver::Await(const std::function<void(std::function<void(T)>)>& begin) {
  struct Answer {
    std::optional<T> value;
    bool awaited = false;
  };
  const auto answer = std::make_shared<Answer>();
  begin([this, weak = std::weak_ptr(answer)](T value) {
    const auto awaited = weak.lock();
    if (awaited == nullptr || awaited->value.has_value()) return;
    awaited->value = std::move(value);
    if (awaited->awaited) Resume();
  });
  answer->awaited = true;
  if (!answer->value.has_value()) worker_->Suspend();
  DWS_CHECK(answer->value.has_value());
  return *std::move(answer->value);
}

}  // namespace dws::sim
