// A trainer rank with a real sender's serving parts in this process.
#pragma once

#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <atomic>
#include <memory>
#include <string>

#include "sender_daemon/on_demand/train_service.h"
#include "sender_daemon/serve/sync_service.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/weights.h"

namespace dws {

inline constexpr StreamId kTrainStream{.incarnation = 1, .id_hi = 2, .id_lo = 3};

// One rank's sender.
class Owner {
 public:
  struct Options {
    uint32_t rank = 0;
    uint32_t world = 1;
    std::string job = "job";
    size_t versions_max = 8;
    uint64_t egress_bytes_per_second = 0;
  };
  Owner(const Options& options, const RankLayout& layout)
      : options_(options),
        hub_(clock_, options.job),
        peers_(options.job, TrainerRank(options.rank)),
        train_({.peers = peers_}),
        sync_({.hub = hub_, .metrics = metrics_, .recheck = recheck_, .refine = {}}, *handles_,
              loans_, fabric_, egress_, deltas_, fulls_, full_transfers_) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(&sync_);
    builder.RegisterService(&train_);
    server_ = builder.BuildAndStart();
    DWS_CHECK(server_ != nullptr);
    Register(layout, kTrainStream, RankEpoch(1));
  }
  ~Owner() {
    Kill();
    loans_.Stop();
    deltas_.Stop();
    fulls_.Stop();
  }

  void Register(const RankLayout& layout, const StreamId& stream, RankEpoch epoch) {
    auto snapshot = Snapshot::Create(layout);
    DWS_CHECK(snapshot.ok());
    state_ = std::make_shared<const RankState>(
        RankState{.stream = stream,
                  .trainer_rank = TrainerRank(options_.rank),
                  .world_size = options_.world,
                  .rank_epoch = epoch,
                  .declared = layout,
                  .snapshot = *std::move(snapshot),
                  .log = std::make_shared<DeltaLog>(
                      layout, DeltaLogLimits{.bytes_max = uint64_t{1} << 30,
                                             .versions_max = options_.versions_max})});
    hub_.Welcome(state_);
    peers_.Welcome(state_);
  }
  // Captures, retains and announces, as the daemon does.
  void Publish(uint64_t version, const Weights& weights) {
    PublishAll(state_, pool_, version, weights);
    peers_.Offer(state_);
  }
  // Captures only: the version is not published.
  void CaptureOnly(uint64_t version, const Weights& weights) {
    CaptureAll(*state_, pool_, version, weights);
  }
  // Nobody answers from now on.
  void Kill() {
    peers_.Stop();
    hub_.Stop();
    server_->Shutdown(std::chrono::system_clock::now());
  }
  // No process can take its snapshot's descriptor from now on.
  void CloseHandleSocket() { ::unlink(handles_->path().c_str()); }

  std::string address() const { return fmt::format("127.0.0.1:{}", port_); }
  const RankStatePtr& state() const { return state_; }
  // FetchFull streams that are open.
  size_t full_transfers() const { return full_transfers_; }

 private:
  const Options options_;
  RealClock clock_;
  ReceiverHub hub_;
  TrainPeers peers_;
  SenderMetrics metrics_{"job", 0};
  SnapshotRecheck recheck_{[] {}};
  Executor deltas_{1, 64};
  Executor fulls_{1, 64};
  std::atomic<size_t> full_transfers_{0};
  TempFolder sockets_;
  std::unique_ptr<HandleSocket> handles_ =
      *HandleSocket::Listen({.path = sockets_.path() + "/handles"});
  GpuLoans loans_{*handles_};
  EgressLimit egress_{options_.egress_bytes_per_second, clock_};
  FabricHost fabric_{{.choice = {.on = true, .only = FabricProvider::kTcp}, .source = "127.0.0.1"},
                     clock_};
  TrainServiceImpl train_;
  SyncServiceImpl sync_;
  RankStatePtr state_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
  ThreadPool pool_{0};
};

}  // namespace dws
