// A connection between a sender and a receiver as a transport, with all sources that the receiver
// can have beside it.
#pragma once

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <algorithm>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/threads/executor.h"
#include "common/sources/sender/device_source.h"
#include "common/sources/sender/fabric_source.h"
#include "common/sources/sender/grpc_source.h"
#include "common/sources/sender/same_host_source.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "receiver_daemon/transfer/host/host_share.h"
#include "receiver_daemon/transfer/peers/peer_source.h"
#include "receiver_daemon/transfer/shared/shared_dir_source.h"
#include "receiver_daemon/transfer/sources/broadcast_source.h"
#include "receiver_daemon/transfer/sources/inline_source.h"
#include "sender_daemon/serve/broadcaster.h"
#include "sender_daemon/serve/peer_directory.h"
#include "sender_daemon/serve/sync_service.h"
#include "tests/conformance/transports.h"

namespace dws {

// What a sender and a receiver with a connection have besides it.
struct Ways {
  std::optional<std::string> only_full = {};  // the source of full tensors
  FabricChoice fabric = {};
  LentMemory::Connect connect = {};
  bool directory = false;
  bool host_share = false;
  bool peers = false;  // receivers of the job serve each other
  std::optional<nccl::BroadcastChannel::Parts> broadcasts = {};
  size_t versions_max = 64;  // in the directory
};

class GrpcTransport final : public Transport {
 public:
  // `only`: the source of full tensors.
  explicit GrpcTransport(const std::string& only)
      : GrpcTransport(Ways{.only_full = only,
                           .fabric = {.on = only == "fabric", .only = FabricProvider::kTcp}}) {}
  explicit GrpcTransport(Ways ways, const Clock* hub_clock = nullptr)
      : Transport(hub_clock), ways_(std::move(ways)) {
    if (ways_.directory) folder_.emplace(hub_, 32, ways_.versions_max, false);
    if (ways_.broadcasts.has_value()) {
      broadcaster_.emplace(*ways_.broadcasts, std::chrono::seconds(5));
    }
    service_.emplace(SyncStream::Parts{.hub = hub_,
                                       .metrics = metrics_,
                                       .recheck = recheck_,
                                       .refine = {},
                                       .broadcaster = broadcaster_ ? &*broadcaster_ : nullptr,
                                       .peers = ways_.peers ? &directory_ : nullptr},
                     *handles_, loans_, fabric_, egress_, deltas_, fulls_, full_transfers_);
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&*service_);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
    MakeSubscription(address());
  }
  ~GrpcTransport() override {
    StopReceiver();
    StopSender();
    deltas_.Stop();
    fulls_.Stop();
  }

  void Registered(const RankStatePtr& state) override {
    hub_.Welcome(state);
    state_ = state;
  }
  void Published() override {
    if (folder_.has_value()) {
      folder_->publisher().Offer(state_);
      folder_->Work();
    }
    if (broadcaster_.has_value() && links_ != nullptr) {
      REQUIRE(Eventually([this] { return broadcaster_->view().members == 1; }));
      broadcaster_->Offer(state_->stream, state_->log->Newest());
    }
    hub_.Announce();
  }
  void Damage(const RankState& state, uint64_t version) override {
    const RetainedVersionPtr retained = state.log->Find(WeightVersion(version));
    auto& object = const_cast<std::vector<std::byte>&>(retained->object);
    object.back() ^= std::byte{1};
  }
  void StartReceiver() override {
    MakeSubscription(address());
    links_ = std::make_unique<SyncLinks>(
        SyncLinks::Options{.addresses = {address()},
                           .job_id = "job",
                           .receiver_id = "r0",
                           .peer_address = ways_.peers ? "127.0.0.1:1" : "",
                           .broadcasts = ways_.broadcasts ? &*ways_.broadcasts : nullptr,
                           .broadcast_bytes_max = uint64_t{1} << 30},
        *subscription_, clock_);
    OpenSources();
    sources_.emplace(All(),
                     SourceChain::Options{.senders = {address()}, .only_full = ways_.only_full});
    links_->Start();
    if (ways_.peers) {
      REQUIRE(Eventually([this] {
        v1::SenderStatus status;
        directory_.FillStatus(status);
        return status.peers().able() == 2;
      }));
    }
  }
  void StopReceiver() override {
    peers_ = nullptr;
    sources_.reset();
    owned_.clear();
    links_.reset();
  }
  void CancelFetches() override {
    cancellation_.Cancel();
    links_->CancelFetches();
    if (peers_ != nullptr) peers_->CancelFetches();
  }
  // The trainer's host is gone.
  void StopSender() {
    if (folder_.has_value()) folder_->publisher().Stop();
    if (broadcaster_.has_value()) broadcaster_->Stop();
    hub_.Stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  Senders& senders() override { return *links_; }
  Source& source(std::string_view name) const {
    const auto found = std::find_if(owned_.begin(), owned_.end(),
                                    [&](const auto& source) { return source->name() == name; });
    REQUIRE(found != owned_.end());
    return **found;
  }
  PublishedFolder& folder() { return *folder_; }
  PeerDirectory& directory() { return directory_; }
  const std::string& share() const { return share_.path(); }
  // No receiver can take a descriptor from now on.
  void CloseHandleSocket() { ::unlink(handles_->path().c_str()); }
  SourceChain::Last last_full() const { return sources_->last(SenderIndex(0), Content::kFull); }

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }

 private:
  // Opens them in the order of SenderSide::OpenSources.
  void OpenSources() {
    owned_.push_back(std::make_unique<InlineSource>(*links_));
    if (broadcaster_.has_value()) owned_.push_back(std::make_unique<BroadcastSource>(*links_));
    if (folder_.has_value()) {
      owned_.push_back(std::make_unique<SharedDirSource>(
          SharedDirSource::Options{.root = folder_->root(),
                                   .job_id = "job",
                                   .pool = &pool_,
                                   .poll = std::chrono::milliseconds(5),
                                   .visible_wait = std::chrono::milliseconds(50)},
          folder_->files(), cancellation_));
    }
    if (ways_.host_share) {
      auto share = HostShare::Open({.folder = share_.path(), .job_id = "job"}, cancellation_);
      REQUIRE(share.ok());
      owned_.push_back(*std::move(share));
    }
    owned_.push_back(std::make_unique<DeviceSource>(*links_, clock_));
    owned_.push_back(std::make_unique<SameHostSource>(*links_, pool_, cancellation_));
    if (ways_.fabric.on) {
      owned_.push_back(
          std::make_unique<FabricSource>(*links_, ways_.fabric, ways_.connect, clock_));
    }
    if (ways_.peers) {
      auto peers = std::make_unique<PeerSource>(*links_, PeerSource::Options{.job_id = "job"},
                                                cancellation_, clock_);
      peers_ = peers.get();
      owned_.push_back(std::move(peers));
    }
    owned_.push_back(std::make_unique<GrpcSource>(*links_, ProfileChoice::kAuto, clock_));
  }
  std::vector<Source*> All() const {
    std::vector<Source*> all;
    for (const auto& source : owned_) all.push_back(source.get());
    return all;
  }

  const Ways ways_;
  SenderMetrics metrics_{"job", 0};
  SnapshotRecheck recheck_{[] {}};
  Executor deltas_{1, 16};
  Executor fulls_{1, 16};
  std::atomic<size_t> full_transfers_{0};
  TempFolder sockets_;
  TempFolder share_;
  std::unique_ptr<HandleSocket> handles_ =
      *HandleSocket::Listen({.path = sockets_.path() + "/handles"});
  GpuLoans loans_{*handles_};
  EgressLimit egress_{0, clock_};
  FabricHost fabric_{{.choice = ways_.fabric, .source = "127.0.0.1"}, clock_};
  std::optional<PublishedFolder> folder_;
  std::optional<Broadcaster> broadcaster_;
  PeerDirectory directory_{clock_};
  std::optional<SyncServiceImpl> service_;
  RankStatePtr state_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  ThreadPool pool_{1};
  Cancellation cancellation_;
  std::unique_ptr<SyncLinks> links_;
  std::vector<std::unique_ptr<Source>> owned_;  // best first; end before the links
  PeerSource* peers_ = nullptr;                 // of these
};

}  // namespace dws
