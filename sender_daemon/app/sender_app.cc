#include "sender_daemon/app/sender_app.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/run_on.h"
#include "common/base/threads/thread_pool.h"
#include "common/ledger/file_version_ledger.h"
#include "common/memory/cuda/cuda_devices.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/listen_address.h"
#include "common/service/sockets/handle_socket.h"
#include "common/transport/fabric/fabric_host.h"
#include "sender_daemon/app/sender_flags.h"
#include "sender_daemon/app/sender_operations.h"
#include "sender_daemon/app/sender_readiness.h"
#include "sender_daemon/app/version_history.h"
#include "sender_daemon/metrics/sender_metrics.h"
#include "sender_daemon/on_demand/on_demand.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/publish/snapshot_recheck.h"
#include "sender_daemon/publish/version_sink.h"
#include "sender_daemon/serve/announcement_sink.h"
#include "sender_daemon/serve/broadcast_sink.h"
#include "sender_daemon/serve/peer_directory.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/serve/sync_service.h"
#include "sender_daemon/shared/shared_sink.h"
#include "sender_daemon/slime/slime_sink.h"
#include "sender_daemon/trainer/cuts_file.h"
#include "sender_daemon/trainer/drain_switch.h"
#include "sender_daemon/trainer/refinement_queue.h"
#include "sender_daemon/trainer/trainer_service.h"
#include "sender_daemon/trainer/trainer_session.h"

namespace dws {
namespace {

// The first squash deltas; the second read full tensors, and wait for gaps between captures.
constexpr size_t kDeltaThreads = 2;
constexpr size_t kFullThreads = 2;
constexpr size_t kServeQueueMax = 4 * limits::kReceiversMax;
constexpr size_t kTrainerQueueMax = 1024;

// Microseconds since 1970. Grows from process to process while the clock is roughly right; where it
// is not, the ledger still makes epochs grow.
uint64_t EpochFloor() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

// The address of --listen for a fabric to bind; empty: one for each adapter.
std::string FabricSource(const std::string& listen) {
  const auto address = ParseListenAddress(listen);
  if (!address.ok() || address->host == "0.0.0.0" || address->host == "::") return "";
  return address->host == "localhost" ? "127.0.0.1" : address->host;
}

// Members are declared in the order of construction, so each is destroyed before the ones it uses.
class SenderApp final : public Daemon {
 public:
  explicit SenderApp(SenderOptions options);
  ~SenderApp() override;

  Status Start();
  void Stop(std::chrono::milliseconds grace) override;
  void EndGrace() override { grace_.Cancel(); }
  // An error means that the process has lost a GPU.
  Status broken() const override { return devices_.lost(); }
  void Tick() override { readiness_->Update(); }
  std::vector<WatchedWork> VitalWork() const override;

 private:
  Status StartParts();
  // The places that versions are published to. A new one is made here.
  Status OpenSinks();
  void StartPipeline();
  void StartSession();
  Status Serve();
  void StartOperations();
  Status ForgetStream(const StreamId& stream);
  // Wait until all calls, or all records, are done. False: the deadline or EndGrace came first.
  bool AwaitTrainerCalls(TimePoint deadline);
  bool AwaitRecords(TimePoint deadline);
  void AwaitSettled(const VersionSink& sink, TimePoint deadline);

  const SenderOptions options_;
  bool stopped_ = false;
  Cancellation trainer_calls_;  // cancelled: they have ended
  Cancellation grace_;          // cancelled: Stop waits no longer

  SenderMetrics metrics_;
  VersionHistory history_{kSystemWallClock};
  DrainSwitch drain_;
  cuda::CudaDevices devices_;
  std::unique_ptr<SharedSenderLedger> ledger_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ReceiverHub> hub_;
  PeerDirectory peers_{clock_};
  std::unique_ptr<SnapshotRecheck> recheck_;
  std::unique_ptr<OnDemand> on_demand_;
  VersionSinks sinks_;
  std::unique_ptr<SenderReadiness> readiness_;
  Broadcaster* broadcaster_ = nullptr;  // of a sink; null: no broadcasts
  std::unique_ptr<PublishPipeline> pipeline_;
  std::unique_ptr<HandleSocket> handles_;
  std::unique_ptr<GpuLoans> loans_;
  std::unique_ptr<FabricHost> fabric_;
  std::unique_ptr<Executor> trainer_executor_;  // one thread: the trainer's calls are serial
  std::unique_ptr<Executor> delta_executor_;
  std::unique_ptr<Executor> full_executor_;
  std::unique_ptr<CutsFile> cuts_;
  std::unique_ptr<FollowedViews> views_;
  std::unique_ptr<TrainerSession> session_;
  std::unique_ptr<RefinementQueue> refinements_;
  std::unique_ptr<TrainerServiceImpl> trainer_service_;
  std::atomic<size_t> full_transfers_{0};
  EgressLimit egress_{options_.egress_bytes_per_second, clock_};
  EgressLimit no_limit_{0, clock_};                       // to this host
  std::unique_ptr<SyncServiceImpl> local_sync_service_;   // of the unix socket
  std::unique_ptr<SyncServiceImpl> remote_sync_service_;  // of --listen
  std::unique_ptr<SenderOperations> operations_;
};

}  // namespace

SenderApp::SenderApp(SenderOptions options)
    : Daemon(options),
      options_(std::move(options)),
      metrics_(options_.job_id, options_.trainer_rank),
      devices_(options_.gpu_kernels) {}

SenderApp::~SenderApp() {
  Stop(limits::kShutdownGrace);
  CloseServers();
}

Status SenderApp::Start() {
  std::vector<Identity> own{SenderIdentity(options_.job_id, options_.trainer_rank)};
  if (!options_.train_peers.empty()) {
    own.push_back(SenderIdentity(options_.job_id, options_.trainer_rank, Role::kTrain));
  }
  DWS_RETURN_IF_ERROR(LoadSecurity(std::move(own)));
  DWS_RETURN_IF_ERROR(StartParts());
  DWS_RETURN_IF_ERROR(Serve());
  readiness_->Update();
  return OkStatus();
}

void SenderApp::StartPipeline() {
  pipeline_ = std::make_unique<PublishPipeline>(PublishPipeline::Outputs{
      .record =
          [this](const RankState& state, const RetainedVersion& version) {
            return ledger_->Record(VersionPublished{.stream = state.stream,
                                                    .version = version.version,
                                                    .base = version.base,
                                                    .state_token = version.manifest.state_token});
          },
      .announce =
          [this](const RankStatePtr& state) {
            for (const auto& sink : sinks_) sink->Offer(state);
          },
      .on_trouble = [this](const Status& status) { readiness_->SetTrouble(status); },
      .on_published =
          [this](const RankState& state, const RetainedVersion& version) {
            metrics_.OnPublished(state, version);
            history_.OnPublished(state, version);
            views_->OnRecorded(version.version);
          }});
}

Status SenderApp::StartParts() {
  DWS_ASSIGN_OR_RETURN(
      auto ledger, OpenSenderLedger(files_, options_.state_folder,
                                    {.quarantine_damaged = options_.quarantine_damaged_ledger}));
  ledger_ = std::make_unique<SharedSenderLedger>(std::move(ledger));
  pool_ = std::make_unique<ThreadPool>(options_.threads - 1);  // the caller takes part
  hub_ = std::make_unique<ReceiverHub>(
      clock_, options_.job_id, options_.laggard_after,
      std::make_unique<ReceiverMemory>(files_, options_.state_folder,
                                       [] { return EpochFloor() / 1'000'000; }),
      [this](const AcknowledgedCommit& report) { history_.OnCommitted(report); });
  recheck_ = std::make_unique<SnapshotRecheck>([this] { metrics_.OnVerifyMismatches(1); });
  on_demand_ = std::make_unique<OnDemand>(
      OnDemand::Options{
          .job_id = options_.job_id,
          .rank = TrainerRank(options_.trainer_rank),
          .peers = options_.train_peers,
          .peer_timeout = options_.train_peer_timeout,
          .host_id = options_.host_id,
          .host_cache_bytes = options_.host_cache_bytes,
          .host_accumulate_bytes = options_.host_accumulate_bytes,
          .object_bytes = options_.object_bytes,
          .gather = {.fabric = options_.fabric, .spool_folder = options_.state_folder},
          .epoch = std::max(RankEpoch(EpochFloor()),
                            RankEpoch(ledger_->state().rank_epoch().value() + 1))},
      *pool_, clock_);
  DWS_RETURN_IF_ERROR(OpenSinks());
  readiness_ = std::make_unique<SenderReadiness>(SenderReadiness::Parts{
      .awaited = fmt::format("trainer rank {} of job '{}' to register on {}", options_.trainer_rank,
                             options_.job_id, options_.socket),
      .place_stale_after = options_.folder_stale_after,
      .drain = drain_,
      .places = sinks_,
      .views = [this] { return views_ == nullptr ? std::nullopt : views_->failure(); },
      .show = [this](bool ready, const std::string& reason) { ShowReadiness(ready, reason); }});
  StartPipeline();
  DWS_ASSIGN_OR_RETURN(handles_, HandleSocket::Listen({.path = options_.socket + ".handles",
                                                       .allowed = allowed_users_}));
  loans_ = std::make_unique<GpuLoans>(*handles_);
  fabric_ = std::make_unique<FabricHost>(
      FabricHost::Options{.choice = options_.fabric, .source = FabricSource(options_.listen)},
      clock_);
  fabric_->Start();
  trainer_executor_ = std::make_unique<Executor>(1, kTrainerQueueMax);
  delta_executor_ = std::make_unique<Executor>(kDeltaThreads, kServeQueueMax);
  full_executor_ = std::make_unique<Executor>(kFullThreads, kServeQueueMax);
  StartSession();
  return OkStatus();
}

void SenderApp::StartSession() {
  // The directory asks for profile wan, like a receiver, but for every version.
  const bool wan = options_.profile == ProfileChoice::kAuto && options_.shared_dir.WantsWan();
  cuts_ = std::make_unique<CutsFile>(files_, options_.state_folder);
  views_ = std::make_unique<FollowedViews>(FollowedViews::Parts{
      .executor = *trainer_executor_,
      .hub = *hub_,
      .pipeline = *pipeline_,
      .pool = *pool_,
      .clock = clock_,
      .log_limits = {.bytes_max = options_.retain_bytes, .versions_max = options_.retain_versions},
      .kept = KeptViews(options_),
      .on_captured = [this](Duration time) { metrics_.OnViewsCaptured(time); },
      .on_late =
          [this](const RankStatePtr& view) {
            for (const auto& sink : sinks_) sink->OfferView(view);
          },
      .on_left_out = [this] { metrics_.OnViewVersionLeftOut(); }});
  session_ = std::make_unique<TrainerSession>(
      TrainerSession::Options{
          .job_id = options_.job_id,
          .trainer_rank = TrainerRank(options_.trainer_rank),
          .log_limits = {.bytes_max = options_.retain_bytes,
                         .versions_max = options_.retain_versions},
          .profile = wan ? ProfileChoice::kWan : options_.profile,
          .feeds_directory = !options_.shared_dir.root.empty() || !options_.slime_dir.root.empty(),
          .huge_pages = options_.huge_pages,
          .epoch_floor = RankEpoch(EpochFloor())},
      TrainerSession::Parts{.clock = &clock_,
                            .executor = trainer_executor_.get(),
                            .pool = pool_.get(),
                            .handles = handles_.get(),
                            .ledger = ledger_.get(),
                            .pipeline = pipeline_.get(),
                            .drain = &drain_,
                            .cuts = cuts_.get(),
                            .devices = &devices_,
                            .on_state =
                                [this](RankStatePtr state) {
                                  readiness_->SetRegistered(true);
                                  for (const auto& sink : sinks_) sink->Welcome(state);
                                  views_->OnState(state);
                                  for (const auto& sink : sinks_) sink->WelcomeViews(state);
                                  fabric_->EndOthers(state->snapshot->memory().id());
                                },
                            .on_gone =
                                [this] {
                                  readiness_->SetRegistered(false);
                                  hub_->Replacing();
                                },
                            // Called by a capture thread: another one must do the work.
                            .on_replacing =
                                [this] {
                                  const auto say = [this] { hub_->Replacing(); };
                                  if (!delta_executor_->Post(say)) say();
                                },
                            .fetches_early = [this] { return hub_->AnyEarly(); },
                            .on_refined =
                                [this](const RankStatePtr& state) {
                                  for (const auto& sink : sinks_) sink->Refine(state);
                                  views_->OnState(state);
                                  fabric_->EndOthers(state->snapshot->memory().id());
                                },
                            .views = views_.get()});
  refinements_ = std::make_unique<RefinementQueue>(*trainer_executor_, *session_);
}

void SenderApp::StartOperations() {
  DWS_CHECK(hub_ != nullptr && session_ != nullptr && pipeline_ != nullptr);
  operations_ = std::make_unique<SenderOperations>(
      SenderOperations::Names{.job_id = options_.job_id,
                              .trainer_rank = options_.trainer_rank,
                              .log_limits = {.bytes_max = options_.retain_bytes,
                                             .versions_max = options_.retain_versions}},
      SenderOperations::Parts{
          .lifecycle = lifecycle_,
          .hub = *hub_,
          .session = *session_,
          .pipeline = *pipeline_,
          .clock = clock_,
          .metrics = metrics_,
          .drain = drain_,
          .on_drain = [this] { readiness_->Update(); },
          .failure = [this] { return readiness_->Failure(); },
          .sinks = sinks_,
          .fabric = *fabric_,
          .history = history_,
          .peers = &peers_,
          .forget_stream = [this](const StreamId& stream) { return ForgetStream(stream); }});
}

// Runs on the trainer's thread, which alone knows whether a trainer is registered.
Status SenderApp::ForgetStream(const StreamId& stream) {
  return RunOn(*trainer_executor_, 2 * limits::kRpcDeadline, "forgetting the stream",
               [this, stream] {
                 Status status = session_->ForgetStream(stream);
                 if (status.ok()) {
                   hub_->Forget();
                   views_->Forget();
                   fabric_->EndOthers(0);
                 }
                 return status;
               });
}

Status SenderApp::Serve() {
  DWS_CHECK(trainer_executor_ != nullptr && delta_executor_ != nullptr &&
            full_executor_ != nullptr && recheck_ != nullptr);
  StartOperations();
  DWS_RETURN_IF_ERROR(on_demand_->Start({
      .tls = {.credentials = credentials_, .users = allowed_users_},
      .handles = *handles_,
      .trainer_executor = *trainer_executor_,
      .reads = *delta_executor_,
      // A wait for version 1 has the same conditions.
      .check_session =
          [this](uint64_t session) {
            v1::WaitRequest wait;
            wait.set_session(session);
            wait.set_version(1);
            return session_->CheckWait(wait);
          },
  }));
  views_->SetExchange(on_demand_->exchange());
  trainer_service_ = std::make_unique<TrainerServiceImpl>(clock_, *trainer_executor_, *session_,
                                                          *hub_, metrics_, on_demand_->gate());
  // One for each server, over the same parts.
  const auto make_sync_service = [this](EgressLimit& egress) {
    return std::make_unique<SyncServiceImpl>(
        SyncStream::Parts{
            .hub = *hub_,
            .metrics = metrics_,
            .recheck = *recheck_,
            .refine = [this](RefineRequest request) { refinements_->Ask(std::move(request)); },
            .follow =
                [this](const std::string& view, const std::function<void(const Status&)>& refused) {
                  views_->Follow(view, refused);
                },
            .broadcaster = broadcaster_,
            .peers = &peers_,
            .host_id = options_.host_id},
        *handles_, *loans_, *fabric_, egress, *delta_executor_, *full_executor_, full_transfers_);
  };
  local_sync_service_ = make_sync_service(no_limit_);
  remote_sync_service_ = make_sync_service(egress_);
  DaemonServers::Services local{
      {.name = "dws.v1.TrainerService", .service = trainer_service_.get()},
      {.name = "dws.v1.SyncService", .service = local_sync_service_.get()}};
  DaemonServers::Services remote{
      {.name = "dws.v1.SyncService", .service = remote_sync_service_.get()}};
  for (const auto& service : on_demand_->for_rank()) local.push_back(service);
  for (const auto& service : on_demand_->for_senders()) {
    local.push_back(service);
    remote.push_back(service);
  }
  DWS_RETURN_IF_ERROR(StartServers({.operations = *operations_,
                                    .metrics = metrics_.registry(),
                                    .local = std::move(local),
                                    .remote = std::move(remote),
                                    .plain_peers = PlainTrainPeers(options_)}));
  LogInfo("listening",
          {{"socket", options_.socket}, {"sync_port", grpc_port()}, {"http_port", http_port()}});
  return WritePorts("sync");
}

std::vector<WatchedWork> SenderApp::VitalWork() const {
  return {{.name = "a call of the trainer",
           .work = &trainer_executor_->liveness(),
           .helpers = {&pool_->liveness()}},
          {.name = "recording a version", .work = &pipeline_->liveness(), .helpers = {}}};
}

Status SenderApp::OpenSinks() {
  DWS_CHECK(hub_ != nullptr && recheck_ != nullptr);
  auto broadcasts =
      std::make_unique<BroadcastSink>(options_.broadcasts, options_.broadcast_timeout, clock_);
  broadcaster_ = broadcasts->broadcaster();
  sinks_.push_back(std::move(broadcasts));
  sinks_.push_back(std::make_unique<AnnouncementSink>(*hub_));
  sinks_.push_back(on_demand_->MakeSink());
  DWS_ASSIGN_OR_RETURN(
      sinks_.emplace_back(),
      SharedSink::Open({.dir = options_.shared_dir,
                        .job_id = options_.job_id,
                        .trainer_rank = TrainerRank(options_.trainer_rank),
                        .versions_max = options_.retain_versions},
                       {.files = files_,
                        .hub = *hub_,
                        .on_nack = [this](uint32_t code) { metrics_.OnNack(code); },
                        .on_refused =
                            [this](const RankStatePtr& state, std::vector<RankSlice> slices) {
                              recheck_->Ask(state, std::move(slices));
                            }}));
  SlimeDirOptions slime_dir = options_.slime_dir;
  slime_dir.threads = options_.threads;
  SlimeSink::Parts slime{.files = files_};
  slime.view_state = [this](const std::string& view) { return hub_->Current(view); };
  slime.on_damage = [this](const RankStatePtr& state) { recheck_->AskAll(state); };
  DWS_ASSIGN_OR_RETURN(sinks_.emplace_back(), SlimeSink::Open(slime_dir, std::move(slime)));
  return OkStatus();
}

// 1. Refuse new work: waits, Sync streams and operators' calls end, and new callers are refused.
// 2. Give the trainer's earlier calls the grace to finish.
// 3. End the calls that only watch, or whose transfers can be repeated, together with the servers.
// 4. Record the captured versions, if the disk allows it, and wait until the publishers have
//    written them.
// Calls end before the parts they use, and executors before the sockets that their tasks use.
void SenderApp::Stop(std::chrono::milliseconds grace) {
  if (std::exchange(stopped_, true)) return;
  const TimePoint deadline = clock_.Now() + grace;
  lifecycle_.SetStopping();
  for (const auto& sink : sinks_) sink->Disconnect();  // 1
  StopOperators();
  if (trainer_executor_ != nullptr && !AwaitTrainerCalls(deadline)) {  // 2
    LogWarning("stopped_during_a_call_of_the_trainer");
  }
  if (on_demand_ != nullptr) on_demand_->Stop();  // 3
  ShutdownServers();
  if (trainer_executor_ != nullptr) trainer_executor_->Stop();
  if (loans_ != nullptr) loans_->Stop();
  handles_.reset();
  if (delta_executor_ != nullptr) delta_executor_->Stop();
  if (full_executor_ != nullptr) full_executor_->Stop();
  if (recheck_ != nullptr) recheck_->Stop();
  if (pipeline_ == nullptr) return;
  if (!AwaitRecords(deadline)) LogWarning("stopped_before_recording");  // 4
  pipeline_->Stop();
  for (const auto& sink : sinks_) {
    AwaitSettled(*sink, deadline);
    sink->Stop();
  }
}

// The executor runs calls in order, so a task at the end of its queue runs after all of them.
bool SenderApp::AwaitTrainerCalls(TimePoint deadline) {
  const bool posted = trainer_executor_->Post([this] { trainer_calls_.Cancel(); });
  while (posted && !grace_.cancelled() && clock_.Now() < deadline &&
         trainer_calls_.Sleep(std::min<Duration>(deadline - clock_.Now(), limits::kTick))) {
  }
  return trainer_calls_.cancelled();
}

bool SenderApp::AwaitRecords(TimePoint deadline) {
  while (!pipeline_->Drain(limits::kTick).ok()) {
    if (grace_.cancelled() || clock_.Now() >= deadline) return false;
  }
  return true;
}

void SenderApp::AwaitSettled(const VersionSink& sink, TimePoint deadline) {
  while (!sink.settled()) {
    if (grace_.cancelled() || clock_.Now() >= deadline) {
      LogWarning("stopped_before_publishing", {{"to", sink.name()}});
      return;
    }
    grace_.Sleep(limits::kTick);
  }
}

Result<std::unique_ptr<Daemon>> StartSender(SenderOptions options) {
  auto app = std::make_unique<SenderApp>(std::move(options));
  DWS_RETURN_IF_ERROR(app->Start());
  return std::unique_ptr<Daemon>(std::move(app));
}

}  // namespace dws
