// The transports from a rank's state to a receiver behind one interface: a real sender side and the
// receiver's real senders and sources, in one process.
#pragma once

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <fstream>
#include <memory>
#include <optional>
#include <ostream>
#include <string>

#include "common/base/threads/executor.h"
#include "common/transport/shared_fs/names.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "receiver_daemon/transfer/shared/shared_links.h"
#include "receiver_daemon/transfer/sources/fabric_source.h"
#include "receiver_daemon/transfer/sources/grpc_source.h"
#include "receiver_daemon/transfer/sources/inline_source.h"
#include "receiver_daemon/transfer/sources/same_host_source.h"
#include "sender_daemon/serve/sync_service.h"
#include "sender_daemon/shared/shared_publisher.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/rank.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"

namespace dws {

// kGrpcStream, kSameHost, kFabric: the same connection, full tensors by one way or another.
enum class TransportKind { kGrpcStream, kSameHost, kFabric, kSharedFs };

inline std::ostream& operator<<(std::ostream& out, TransportKind kind) {
  switch (kind) {
    case TransportKind::kGrpcStream:
      return out << "grpc_stream";
    case TransportKind::kSameHost:
      return out << "same_host";
    case TransportKind::kFabric:
      return out << "fabric";
    case TransportKind::kSharedFs:
      break;
  }
  return out << "shared_fs";
}

// Threads: one, the test's.
class Transport {
 public:
  // `hub_clock`: the sender's; null: real time.
  explicit Transport(const Clock* hub_clock = nullptr)
      : hub_(hub_clock != nullptr ? *hub_clock : clock_, "job") {}
  virtual ~Transport() = default;

  // The sender side: a trainer registered; a version was published.
  virtual void Registered(const RankStatePtr& state) = 0;
  virtual void Published() = 0;
  // Changes a stored byte of the delta object that leads to `version`.
  virtual void Damage(const RankState& state, uint64_t version) = 0;
  // The receiver side.
  virtual void StartReceiver() = 0;
  virtual void StopReceiver() = 0;
  virtual void CancelFetches() = 0;
  virtual Senders& senders() = 0;
  Group group() { return {.senders = senders(), .sources = *sources_}; }
  const SourceChain& sources() const { return *sources_; }

  ReceiverHub& hub() { return hub_; }
  Subscription& subscription() { return *subscription_; }

 protected:
  void MakeSubscription(std::string name) {
    subscription_ = std::make_unique<Subscription>(std::vector<std::string>{std::move(name)},
                                                   std::nullopt, changed_, clock_);
  }

  RealClock clock_;
  ReceiverHub hub_;
  ChangeSignal changed_;
  std::unique_ptr<Subscription> subscription_;
  std::optional<SourceChain> sources_;  // of the receiver; ends before them
};

// How full tensors may come.
struct FullRules {
  std::optional<std::string> only = {};
  FabricChoice fabric = {};
  LentMemory::Connect connect = {};
};

class GrpcTransport final : public Transport {
 public:
  // `only`: the source of full tensors.
  explicit GrpcTransport(const std::string& only)
      : GrpcTransport(FullRules{
            .only = only, .fabric = {.on = only == "fabric", .only = FabricProvider::kTcp}}) {}
  explicit GrpcTransport(FullRules rules, const Clock* hub_clock = nullptr)
      : Transport(hub_clock), rules_(std::move(rules)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&service_);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    MakeSubscription(address());
  }
  ~GrpcTransport() override {
    StopReceiver();
    hub_.Stop();
    server_->Shutdown(std::chrono::system_clock::now());
    deltas_.Stop();
    fulls_.Stop();
  }

  void Registered(const RankStatePtr& state) override { hub_.Welcome(state); }
  void Published() override { hub_.Announce(); }
  void Damage(const RankState& state, uint64_t version) override {
    const RetainedVersionPtr retained = state.log->Find(WeightVersion(version));
    auto& object = const_cast<std::vector<std::byte>&>(retained->object);
    object.back() ^= std::byte{1};
  }
  void StartReceiver() override {
    MakeSubscription(address());
    SyncLinks::Options options{.addresses = {address()}, .job_id = "job", .receiver_id = "r0"};
    links_ = std::make_unique<SyncLinks>(std::move(options), *subscription_, clock_);
    inline_.emplace(*links_);
    same_host_.emplace(*links_, pool_, cancellation_);
    grpc_.emplace(*links_, ProfileChoice::kAuto, clock_);
    std::vector<Source*> sources = {&*inline_, &*same_host_};
    if (rules_.fabric.on) {
      fabric_source_.emplace(*links_, rules_.fabric, rules_.connect, clock_);
      sources.push_back(&*fabric_source_);
    }
    sources.push_back(&*grpc_);
    sources_.emplace(std::move(sources),
                     SourceChain::Options{.senders = {address()}, .only_full = rules_.only});
    links_->Start();
  }
  void StopReceiver() override {
    sources_.reset();
    links_.reset();
  }
  void CancelFetches() override {
    cancellation_.Cancel();
    links_->CancelFetches();
  }
  Senders& senders() override { return *links_; }
  // No receiver can take a descriptor from now on.
  void CloseHandleSocket() { ::unlink(handles_->path().c_str()); }
  SourceChain::Last last_full() const { return sources_->last(SenderIndex(0), Content::kFull); }

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

 private:
  const FullRules rules_;
  SenderMetrics metrics_{"job", 0};
  SnapshotRecheck recheck_{[] {}};
  Executor deltas_{1, 16};
  Executor fulls_{1, 16};
  std::atomic<size_t> full_transfers_{0};
  TempFolder folder_;
  std::unique_ptr<HandleSocket> handles_ =
      *HandleSocket::Listen({.path = folder_.path() + "/handles"});
  EgressLimit egress_{0, clock_};
  FabricHost fabric_{{.choice = rules_.fabric, .source = "127.0.0.1"}, clock_};
  SyncServiceImpl service_{{.hub = hub_, .metrics = metrics_, .recheck = recheck_},
                           *handles_,
                           fabric_,
                           egress_,
                           deltas_,
                           fulls_,
                           full_transfers_};
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  ThreadPool pool_{0};
  Cancellation cancellation_;
  std::unique_ptr<SyncLinks> links_;
  std::optional<InlineSource> inline_;
  std::optional<SameHostSource> same_host_;
  std::optional<FabricSource> fabric_source_;
  std::optional<GrpcSource> grpc_;
};

class SharedTransport final : public Transport {
 public:
  explicit SharedTransport(size_t anchor_every = 32, size_t versions_max = 64,
                           bool from_base = false)
      : publisher_(
            {.dir = {.root = root_.path(), .anchor_every = anchor_every, .from_base = from_base},
             .job_id = "job",
             .trainer_rank = TrainerRank(0),
             .key = {},
             .versions_max = versions_max},
            files_, hub_, [](const v1::SharedReport&, bool) {}) {
    MakeSubscription("rank-00000");
  }
  ~SharedTransport() override {
    StopReceiver();
    publisher_.Stop();
    hub_.Stop();
  }

  void Registered(const RankStatePtr& state) override {
    hub_.Welcome(state);
    state_ = state;
  }
  void Published() override {
    publisher_.Offer(state_);
    Work();
  }
  // Does the work of a sender's thread.
  void Work() {
    while (true) {
      const Result<bool> more = publisher_.Step();
      INFO(ToString(more.status()));
      REQUIRE(more.ok());
      if (!*more) return;
    }
  }
  void Damage(const RankState& state, uint64_t version) override {
    const std::string path = VersionFolder(state, version) + "/delta";
    std::fstream file(path, std::ios::in | std::ios::out | std::ios::binary);
    file.seekg(-1, std::ios::end);
    const auto last = static_cast<char>(file.get());
    file.seekp(-1, std::ios::end);
    file.put(static_cast<char>(last ^ 1));
    REQUIRE(file.good());
  }
  void StartReceiver() override {
    MakeSubscription("rank-00000");
    auto links = SharedLinks::Create({.root = root_.path(),
                                      .name = {.job_id = "job", .receiver_id = "r0"},
                                      .ranks = 1,
                                      .pool = &pool_,
                                      .poll = std::chrono::milliseconds(5),
                                      .retry_delay = std::chrono::milliseconds(1)},
                                     files_, *subscription_);
    REQUIRE(links.ok());
    links_ = *std::move(links);
    sources_.emplace(std::vector<Source*>{links_.get()}, SourceChain::Options());
    links_->Start();
  }
  void StopReceiver() override {
    sources_.reset();
    links_.reset();
  }
  void CancelFetches() override { links_->CancelFetches(); }
  Senders& senders() override { return *links_; }

  std::string RankFolder() const { return root_.path() + "/job/rank-00000"; }
  std::string VersionFolder(const RankState& state, uint64_t version) const {
    return fmt::format(
        "{}/{}/{}", RankFolder(), shared::StreamName(state.stream),
        shared::VersionFolderName({.version = WeightVersion(version), .epoch = state.rank_epoch}));
  }
  SharedPublisher& publisher() { return publisher_; }

 private:
  TempFolder root_;
  PosixFileSystem files_;
  ThreadPool pool_{1};
  SharedPublisher publisher_;
  RankStatePtr state_;
  std::unique_ptr<SharedLinks> links_;
};

}  // namespace dws
