#include "sender_daemon/app/sender_app.h"

#include <chrono>
#include <future>
#include <utility>

#include "common/base/check.h"
#include "common/base/log.h"
#include "common/ledger/file_version_ledger.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/ports_file.h"
#include "sender_daemon/app/sender_scrape.h"

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

}  // namespace

SenderApp::SenderApp(SenderOptions options)
    : options_(std::move(options)),
      metrics_(options_.job_id, options_.trainer_rank),
      devices_(options_.gpu_kernels) {}

Result<std::unique_ptr<SenderApp>> SenderApp::Start(SenderOptions options) {
  std::unique_ptr<SenderApp> app(new SenderApp(std::move(options)));
  DWS_RETURN_IF_ERROR(app->StartSecurity());
  DWS_RETURN_IF_ERROR(app->StartParts());
  DWS_RETURN_IF_ERROR(app->StartServers());
  app->UpdateReadiness();
  return app;
}

SenderApp::~SenderApp() { Stop(); }

Status SenderApp::StartSecurity() {
  DWS_ASSIGN_OR_RETURN(allowed_users_, AllowedUsers::Parse(options_.allow_users));
  if (!options_.tls.given()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(
      credentials_,
      Credentials::Load({.files = options_.tls,
                         .required = SenderIdentity(options_.job_id, options_.trainer_rank)}));
  return OkStatus();
}

void SenderApp::StartPipeline() {
  if (auto parts = OpenBroadcasts(options_.broadcasts, clock_); parts.has_value()) {
    broadcaster_ = std::make_unique<Broadcaster>(*std::move(parts), options_.broadcast_timeout);
  }
  pipeline_ = std::make_unique<PublishPipeline>(PublishPipeline::Outputs{
      .record =
          [this](const RankState& state, const RetainedVersion& version) {
            return ledger_->Append(VersionPublished{.stream = state.stream,
                                                    .version = version.version,
                                                    .base = version.base,
                                                    .state_token = version.manifest.state_token});
          },
      .announce =
          [this](const RankStatePtr& state) {
            if (broadcaster_ != nullptr) {
              broadcaster_->Offer(state->stream, state->log->Newest());  // before it is announced
            }
            hub_->Announce();
            if (shared_publisher_ != nullptr) shared_publisher_->Offer(state);
            if (slime_publisher_ != nullptr) slime_publisher_->Offer(state);
          },
      .on_trouble =
          [this](const Status& status) {
            {
              MutexLock lock(readiness_mutex_);
              if (trouble_ == status) return;
              trouble_ = status;
            }
            UpdateReadiness();
          },
      .on_published =
          [this](const RankState& state, const RetainedVersion& version, Duration seal_time) {
            metrics_.OnPublished(state, version, seal_time);
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
                                       [] { return EpochFloor() / 1'000'000; }));
  recheck_ = std::make_unique<SnapshotRecheck>([this] { metrics_.OnVerifyMismatches(1); });
  DWS_RETURN_IF_ERROR(StartShared());
  DWS_RETURN_IF_ERROR(StartSlime());
  StartPipeline();
  DWS_ASSIGN_OR_RETURN(handles_, HandleSocket::Listen({.path = options_.socket + ".handles",
                                                       .allowed = allowed_users_}));
  trainer_executor_ = std::make_unique<Executor>(1, kTrainerQueueMax);
  delta_executor_ = std::make_unique<Executor>(kDeltaThreads, kServeQueueMax);
  full_executor_ = std::make_unique<Executor>(kFullThreads, kServeQueueMax);
  session_ = std::make_unique<TrainerSession>(
      TrainerSession::Options{.job_id = options_.job_id,
                              .trainer_rank = TrainerRank(options_.trainer_rank),
                              .log_limits = {.bytes_max = options_.retain_bytes,
                                             .versions_max = options_.retain_versions},
                              .profile = options_.profile,
                              .epoch_floor = RankEpoch(EpochFloor())},
      TrainerSession::Parts{.clock = &clock_,
                            .executor = trainer_executor_.get(),
                            .pool = pool_.get(),
                            .handles = handles_.get(),
                            .ledger = ledger_.get(),
                            .pipeline = pipeline_.get(),
                            .drain = &drain_,
                            .devices = &devices_,
                            .on_state =
                                [this](RankStatePtr state) {
                                  {
                                    MutexLock lock(readiness_mutex_);
                                    registered_ = true;
                                  }
                                  UpdateReadiness();
                                  // So that a layout that the format cannot hold is reported before
                                  // the first version.
                                  if (slime_publisher_ != nullptr) slime_publisher_->Offer(state);
                                  hub_->Welcome(std::move(state));
                                },
                            .on_gone =
                                [this] {
                                  {
                                    MutexLock lock(readiness_mutex_);
                                    registered_ = false;
                                  }
                                  UpdateReadiness();
                                }});
  return OkStatus();
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
          .on_drain = [this] { UpdateReadiness(); },
          .broadcaster = broadcaster_.get(),
          .shared = [this] { return ViewShared(); },
          .slime = [this] { return ViewSlime(); },
          .forget_stream = [this](const StreamId& stream) { return ForgetStream(stream); }});
  ShowSender(metrics_.registry(),
             {.hub = hub_.get(),
              .broadcaster = broadcaster_.get(),
              .shared = [this] { return ViewShared(); },
              .slime = [this] { return ViewSlime(); },
              .trainer_present = [this] { return session_->trainer_present(); },
              .retain_bytes_max = options_.retain_bytes,
              .retain_versions_max = options_.retain_versions});
}

// Runs on the trainer's thread, which alone knows whether a trainer is registered.
Status SenderApp::ForgetStream(const StreamId& stream) {
  const auto outcome = std::make_shared<std::promise<Status>>();
  std::future<Status> done = outcome->get_future();
  if (!trainer_executor_->Post([this, stream, outcome] {
        const Status status = session_->ForgetStream(stream);
        if (status.ok()) hub_->Forget();
        outcome->set_value(status);
      })) {
    return ResourceExhaustedError("the sender is busy with its trainer's calls; try again");
  }
  if (done.wait_for(2 * limits::kRpcDeadline) != std::future_status::ready) {
    return DeadlineExceededError(
        "a call of the trainer does not end; the stream may be forgotten later");
  }
  try {
    return done.get();
  } catch (const std::future_error&) {  // the executor stopped and dropped the task
    return UnavailableError("the sender is shutting down");
  }
}

Status SenderApp::StartServers() {
  DWS_CHECK(trainer_executor_ != nullptr && delta_executor_ != nullptr &&
            full_executor_ != nullptr && recheck_ != nullptr);
  StartOperations();
  trainer_service_ =
      std::make_unique<TrainerServiceImpl>(clock_, *trainer_executor_, *session_, *hub_, metrics_);
  // One for each server, over the same parts.
  const auto make_sync_service = [this] {
    return std::make_unique<SyncServiceImpl>(SyncStream::Parts{.hub = *hub_,
                                                               .metrics = metrics_,
                                                               .recheck = *recheck_,
                                                               .broadcaster = broadcaster_.get()},
                                             *delta_executor_, *full_executor_, full_transfers_);
  };
  local_sync_service_ = make_sync_service();
  remote_sync_service_ = make_sync_service();
  DWS_ASSIGN_OR_RETURN(
      servers_, DaemonServers::Start(
                    {.job_id = options_.job_id,
                     .socket = options_.socket,
                     .allowed_users = allowed_users_,
                     .listen = options_.listen,
                     .http = options_.http,
                     .insecure = options_.insecure,
                     .credentials = credentials_},
                    {.operations = *operations_,
                     .lifecycle = lifecycle_,
                     .metrics = metrics_.registry(),
                     .clock = clock_,
                     .draining = [this] { return drain_.draining(); }},
                    {{.name = "dws.v1.TrainerService", .service = trainer_service_.get()},
                     {.name = "dws.v1.SyncService", .service = local_sync_service_.get()}},
                    {{.name = "dws.v1.SyncService", .service = remote_sync_service_.get()}}));
  LogInfo("listening", {{"socket", options_.socket},
                        {"sync_port", servers_->grpc_port()},
                        {"http_port", servers_->http_port()}});
  if (options_.ports_file.empty()) return OkStatus();
  return WritePortsFile(files_, options_.ports_file, servers_->ports("sync"));
}

void SenderApp::UpdateReadiness() {
  // Threads update the lifecycle in the order in which they read the state.
  MutexLock telling(telling_mutex_);
  std::string reason;
  {
    MutexLock lock(readiness_mutex_);
    if (!trouble_.ok()) {
      reason = fmt::format("versions cannot be recorded: {}", Message(trouble_));
    } else if (!registered_) {
      reason = fmt::format("waiting for trainer rank {} of job '{}' to register on {}",
                           options_.trainer_rank, options_.job_id, options_.socket);
    } else if (drain_.draining()) {
      reason = "drained by the operator: no version is taken until `dwsctl drain --undo`";
    }
  }
  if (reason.empty()) {
    lifecycle_.SetReady();
  } else {
    lifecycle_.SetNotReady(reason);
  }
}

Status SenderApp::ReloadCredentials() {
  return credentials_ == nullptr ? OkStatus() : credentials_->Reload();
}

std::vector<WatchedWork> SenderApp::VitalWork() const {
  return {{.name = "a call of the trainer",
           .work = &trainer_executor_->pulse(),
           .helpers = {&pool_->pulse()}},
          {.name = "recording a version", .work = &pipeline_->pulse(), .helpers = {}}};
}

// What versions are published to beside announcing them.

Status SenderApp::StartShared() {
  if (options_.shared_dir.root.empty()) return OkStatus();
  DWS_CHECK(hub_ != nullptr && recheck_ != nullptr);  // its callbacks use them
  SharedPublisher::Options options{.dir = options_.shared_dir,
                                   .job_id = options_.job_id,
                                   .trainer_rank = TrainerRank(options_.trainer_rank),
                                   .versions_max = options_.retain_versions};
  if (!options.dir.key_file.empty()) {
    DWS_ASSIGN_OR_RETURN(options.key, shared::LoadKey(files_, options.dir.key_file));
  }
  if (!options.dir.after_write.empty()) {
    DWS_ASSIGN_OR_RETURN(auto words, shared::SplitCommand(options.dir.after_write));
    options.after_write = shared::VisibilityHook(std::move(words), options.dir.root);
  }
  DWS_RETURN_IF_ERROR(
      SharedRankFolder(options.dir.root, options.job_id, options.trainer_rank).status());
  shared_publisher_ = std::make_unique<SharedPublisher>(
      std::move(options), files_, *hub_, [this](const v1::SharedReport& report, bool current) {
        metrics_.OnNack(report.rejected_code());
        const auto stream = FromProto(report.stream());
        const RankStatePtr state = hub_->Current();
        const bool digests = current && stream.ok() && report.rejected_slices_size() > 0;
        if (!digests || state == nullptr || state->stream != *stream) return;
        std::vector<RankSlice> slices(report.rejected_slices().begin(),
                                      report.rejected_slices().end());
        recheck_->Ask(state, std::move(slices));
      });
  shared_publisher_->Start();
  return OkStatus();
}

Status SenderApp::StartSlime() {
  const SlimeDirOptions& dir = options_.slime_dir;
  if (dir.root.empty()) return OkStatus();
  if (dir.checkpoint.empty()) {
    return InvalidArgumentError(
        "--slime-dir needs --slime-checkpoint, the folder of the base checkpoint: readers take a "
        "full version for all of a checkpoint, config.json and tokenizer too");
  }
  DWS_ASSIGN_OR_RETURN(BaseCheckpoint base, ReadBaseCheckpoint(files_, dir.checkpoint));
  slime_publisher_ = std::make_unique<SlimePublisher>(
      SlimePublisher::Options{.dir = dir,
                              .base = std::move(base),
                              .on_damage =
                                  [this](const RankStatePtr& state) {
                                    std::vector<RankSlice> slices;
                                    for (uint32_t i = 0; i < state->layout().slice_count(); ++i) {
                                      slices.emplace_back(i);
                                    }
                                    recheck_->Ask(state, std::move(slices));
                                  }},
      files_);
  slime_publisher_->Start();
  return OkStatus();
}

SharedView SenderApp::ViewShared() const {
  return shared_publisher_ == nullptr ? SharedView() : shared_publisher_->view();
}

SlimeView SenderApp::ViewSlime() const {
  return slime_publisher_ == nullptr ? SlimeView() : slime_publisher_->view();
}

// 1. Refuse new work: waits, Sync streams and operators' calls end, new callers are refused.
// 2. Give the trainer's earlier calls the grace to finish.
// 3. End calls that only watch, or that transfer what can be asked for again, with the servers.
// 4. Record what was captured, if the disk allows it, and wait until the publishers have written
//    it.
// Calls end before the parts they use, and executors before the sockets that their tasks use.
void SenderApp::Stop(std::chrono::milliseconds grace) {
  if (std::exchange(stopped_, true)) return;
  const TimePoint deadline = clock_.Now() + grace;
  lifecycle_.SetStopping();
  if (hub_ != nullptr) hub_->Stop();  // 1
  if (broadcaster_ != nullptr) broadcaster_->Stop();
  if (servers_ != nullptr) servers_->StopOperators();
  if (trainer_executor_ != nullptr && !AwaitTrainerCalls(deadline)) {  // 2
    LogWarning("stopped_during_a_call_of_the_trainer");
  }
  if (servers_ != nullptr) servers_->Shutdown();  // 3
  if (trainer_executor_ != nullptr) trainer_executor_->Stop();
  handles_.reset();
  if (delta_executor_ != nullptr) delta_executor_->Stop();
  if (full_executor_ != nullptr) full_executor_->Stop();
  if (recheck_ != nullptr) recheck_->Stop();
  if (pipeline_ == nullptr) return;
  if (!AwaitRecords(deadline)) LogWarning("stopped_before_recording");  // 4
  pipeline_->Stop();
  if (shared_publisher_ != nullptr) {
    AwaitPublisher([this] { return shared_publisher_->settled(); }, deadline, "shared-dir");
    shared_publisher_->Stop();
  }
  if (slime_publisher_ != nullptr) {
    AwaitPublisher([this] { return slime_publisher_->settled(); }, deadline, "slime-dir");
    slime_publisher_->Stop();
  }
}

void SenderApp::EndGrace() {
  MutexLock lock(stop_mutex_);
  grace_over_ = true;
  stop_changed_.NotifyAll();
}

// The executor runs calls in order, so a task at the end of its queue runs after all of them.
bool SenderApp::AwaitTrainerCalls(TimePoint deadline) {
  const bool posted = trainer_executor_->Post([this] {
    MutexLock lock(stop_mutex_);
    trainer_calls_ended_ = true;
    stop_changed_.NotifyAll();
  });
  MutexLock lock(stop_mutex_);
  while (posted && !trainer_calls_ended_ && !grace_over_ && clock_.Now() < deadline) {
    stop_changed_.WaitFor(stop_mutex_, deadline - clock_.Now());
  }
  return trainer_calls_ended_;
}

bool SenderApp::AwaitRecords(TimePoint deadline) {
  while (!pipeline_->Drain(limits::kTick).ok()) {
    MutexLock lock(stop_mutex_);
    if (grace_over_ || clock_.Now() >= deadline) return false;
  }
  return true;
}

void SenderApp::AwaitPublisher(const std::function<bool()>& settled, TimePoint deadline,
                               std::string_view what) {
  while (!settled()) {
    MutexLock lock(stop_mutex_);
    if (grace_over_ || clock_.Now() >= deadline) {
      LogWarning("stopped_before_publishing", {{"to", what}});
      return;
    }
    stop_changed_.WaitFor(stop_mutex_, limits::kTick);
  }
}

}  // namespace dws
