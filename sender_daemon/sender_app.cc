#include "sender_daemon/sender_app.h"

#include <chrono>
#include <utility>

#include "common/base/log.h"
#include "common/ledger/file_version_ledger.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/ports_file.h"

namespace dws {
namespace {

// Deltas are squashed in the first, joiners wait for a gap between captures in the second.
constexpr size_t kDeltaThreads = 2;
constexpr size_t kFullThreads = 2;
constexpr size_t kServeQueueMax = 4 * limits::kReceiversMax;
constexpr size_t kTrainerQueueMax = 1024;

// Microseconds since 1970: grows from process to process as long as the clock is roughly right;
// where it is not, the ledger still makes epochs grow.
uint64_t EpochFloor() {
  return static_cast<uint64_t>(std::chrono::duration_cast<std::chrono::microseconds>(
                                   std::chrono::system_clock::now().time_since_epoch())
                                   .count());
}

}  // namespace

SenderApp::SenderApp(SenderOptions options)
    : options_(std::move(options)), started_at_(clock_.Now()) {}

Result<std::unique_ptr<SenderApp>> SenderApp::Start(SenderOptions options) {
  std::unique_ptr<SenderApp> app(new SenderApp(std::move(options)));
  DWS_RETURN_IF_ERROR(app->StartParts());
  DWS_RETURN_IF_ERROR(app->StartServers());
  app->UpdateReadiness();
  return app;
}

SenderApp::~SenderApp() { Stop(); }

Status SenderApp::StartParts() {
  DWS_ASSIGN_OR_RETURN(auto ledger, OpenSenderLedger(files_, options_.state_folder));
  ledger_ = std::make_unique<SharedSenderLedger>(std::move(ledger));
  pool_ = std::make_unique<ThreadPool>(options_.threads - 1);  // the caller takes part
  hub_ = std::make_unique<ReceiverHub>(clock_, options_.job_id);
  pipeline_ = std::make_unique<PublishPipeline>(PublishPipeline::Outputs{
      .record =
          [this](const RankState& state, const RetainedVersion& version) {
            return ledger_->Append(VersionPublished{.stream = state.stream,
                                                    .version = version.version,
                                                    .base = version.base,
                                                    .state_token = version.manifest.state_token});
          },
      .announce = [this](const RankStatePtr&) { hub_->Announce(); },
      .on_trouble =
          [this](const Status& status) {
            {
              MutexLock lock(readiness_mutex_);
              if (trouble_ == status) return;
              trouble_ = status;
            }
            UpdateReadiness();
          }});
  DWS_ASSIGN_OR_RETURN(handles_, HandleSocket::Listen({.path = options_.socket + ".handles"}));
  trainer_executor_ = std::make_unique<Executor>(1, kTrainerQueueMax);
  delta_executor_ = std::make_unique<Executor>(kDeltaThreads, kServeQueueMax);
  full_executor_ = std::make_unique<Executor>(kFullThreads, kServeQueueMax);
  session_ = std::make_unique<TrainerSession>(
      TrainerSession::Options{.job_id = options_.job_id,
                              .trainer_rank = TrainerRank(options_.trainer_rank),
                              .log_limits = {.bytes_max = options_.retain_bytes,
                                             .versions_max = options_.retain_versions},
                              .epoch_floor = RankEpoch(EpochFloor())},
      TrainerSession::Parts{.clock = &clock_,
                            .executor = trainer_executor_.get(),
                            .pool = pool_.get(),
                            .handles = handles_.get(),
                            .ledger = ledger_.get(),
                            .pipeline = pipeline_.get(),
                            .on_state =
                                [this](RankStatePtr state) {
                                  {
                                    MutexLock lock(readiness_mutex_);
                                    registered_ = true;
                                  }
                                  UpdateReadiness();
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

Status SenderApp::StartServers() {
  trainer_service_ =
      std::make_unique<TrainerServiceImpl>(clock_, *trainer_executor_, *session_, *hub_);
  sync_service_ = std::make_unique<SyncServiceImpl>(*hub_, *delta_executor_, *full_executor_);
  const auto fill = [this](v1::StatusReply& reply) { FillStatus(reply); };
  local_admin_ = std::make_unique<AdminServiceImpl>(fill);
  remote_admin_ = std::make_unique<AdminServiceImpl>(fill);
  DWS_ASSIGN_OR_RETURN(
      local_server_,
      GrpcServer::Start({.unix_socket = options_.socket,
                         .services = {{"dws.v1.TrainerService", trainer_service_.get()},
                                      {"dws.v1.AdminService", local_admin_.get()}},
                         .lifecycle = &lifecycle_}));
  DWS_ASSIGN_OR_RETURN(
      remote_server_, GrpcServer::Start({.listen = options_.listen,
                                         .insecure = options_.insecure,
                                         .services = {{"dws.v1.SyncService", sync_service_.get()},
                                                      {"dws.v1.AdminService", remote_admin_.get()}},
                                         .lifecycle = &lifecycle_}));
  DWS_ASSIGN_OR_RETURN(
      http_, HttpEndpoint::Listen({.address = options_.http, .insecure = options_.insecure},
                                  HealthPages(lifecycle_)));
  const uint16_t sync_port = remote_server_->port().value_or(0);
  LogInfo("listening",
          {{"socket", options_.socket}, {"sync_port", sync_port}, {"http_port", http_->port()}});
  if (options_.ports_file.empty()) return OkStatus();
  return WritePortsFile(files_, options_.ports_file,
                        {{"sync", sync_port}, {"http", http_->port()}});
}

void SenderApp::UpdateReadiness() {
  std::string reason;
  {
    MutexLock lock(readiness_mutex_);
    if (!trouble_.ok()) {
      reason = fmt::format("versions cannot be recorded: {}", Message(trouble_));
    } else if (!registered_) {
      reason = fmt::format("waiting for trainer rank {} of job '{}' to register on {}",
                           options_.trainer_rank, options_.job_id, options_.socket);
    }
  }
  if (reason.empty()) {
    lifecycle_.SetReady();
  } else {
    lifecycle_.SetNotReady(reason);
  }
}

void SenderApp::FillStatus(v1::StatusReply& reply) const {
  const Lifecycle::State life = lifecycle_.state();
  reply.set_daemon("dws-sender");
  reply.set_job_id(options_.job_id);
  reply.set_ready(life.ready);
  reply.set_reason(life.reason);
  reply.set_uptime_seconds(ToSeconds(clock_.Now() - started_at_));
  v1::SenderStatus& sender = *reply.mutable_sender();
  sender.set_trainer_rank(options_.trainer_rank);
  sender.set_trainer_present(session_->trainer_present());
  if (const RankStatePtr state = hub_->Current(); state != nullptr) {
    *sender.mutable_stream() = ToProto(state->stream);
    sender.set_world_size(state->world_size);
    sender.set_rank_epoch(state->rank_epoch.value());
    sender.set_snapshot_bytes(state->snapshot->size_bytes());
    sender.set_retained_bytes(state->log->retained_bytes());
    for (const RetainedVersionPtr& version : state->log->All()) {
      v1::VersionStatus& row = *sender.add_versions();
      row.set_version(version->version.value());
      row.set_base_version(version->base.value_or(WeightVersion(0)).value());
      row.set_nnz(version->nnz);
      row.set_elements(state->layout().element_count());
      row.set_wire_bytes(version->object.size());
      row.set_full_bytes(state->layout().size_bytes());
      row.set_capture_seconds(version->capture_seconds);
      sender.set_newest_version(version->version.value());
    }
  }
  for (const auto& [id, receiver] : hub_->Receivers()) {
    v1::ReceiverPeer& peer = *sender.add_receivers();
    peer.set_receiver_id(id);
    peer.set_present(receiver.connection.has_value());
    peer.set_committed_version(receiver.committed.value_or(WeightVersion(0)).value());
    peer.set_staged_version(receiver.staged.value_or(WeightVersion(0)).value());
    peer.set_last_error(receiver.last_error);
    peer.set_pause_seconds(receiver.last_commit.pause_seconds);
    peer.set_fetched_bytes(receiver.last_commit.fetched_bytes);
  }
}

void SenderApp::Stop() {
  if (std::exchange(stopped_, true)) return;
  lifecycle_.SetStopping();
  // Calls end before what they use: waits and Sync streams first, then servers, then the executors.
  if (hub_ != nullptr) hub_->Stop();
  if (local_server_ != nullptr) local_server_->Shutdown();
  if (remote_server_ != nullptr) remote_server_->Shutdown();
  if (trainer_executor_ != nullptr) trainer_executor_->Stop();  // its tasks use the handle socket
  handles_.reset();
  if (delta_executor_ != nullptr) delta_executor_->Stop();
  if (full_executor_ != nullptr) full_executor_->Stop();
  // What was captured is still recorded, if the disk lets us.
  if (pipeline_ != nullptr) {
    if (const Status drained = pipeline_->Drain(limits::kShutdownGrace); !drained.ok()) {
      LogWarning("stopped_before_recording", {{"reason", Message(drained)}});
    }
    pipeline_->Stop();
  }
}

}  // namespace dws
