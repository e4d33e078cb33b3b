#include "receiver_daemon/follower/follower_app.h"

#include <atomic>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/log.h"
#include "common/base/thread_pool.h"
#include "common/service/lifecycle.h"
#include "common/service/metrics/metrics.h"
#include "common/service/ports_file.h"
#include "common/service/program/daemon_servers.h"
#include "common/service/security/credentials.h"
#include "receiver_daemon/engine_http/http_control.h"
#include "receiver_daemon/follower/follower_metrics.h"
#include "receiver_daemon/follower/follower_operations.h"
#include "receiver_daemon/follower/slime_follower.h"

namespace dws {

// Members are declared in the order of construction, so each is destroyed before the ones it calls.
class FollowerApp::Impl {
 public:
  explicit Impl(const ReceiverOptions& options)
      : options_(options),
        metrics_({{"dws_job", options.job_id}, {"receiver_id", options.receiver_id}}),
        pool_(options.threads) {}
  ~Impl() { Stop(std::chrono::milliseconds(0)); }

  Status Start();
  void Stop(std::chrono::milliseconds grace);
  void EndGrace() { GiveUpAt(clock_.Now()); }
  Status ReloadCredentials() {
    return credentials_ == nullptr ? OkStatus() : credentials_->Reload();
  }
  v1::StatusReply status() const { return servers_->status(); }
  void ShowReadiness() { follower_->ShowReadiness(); }
  std::vector<WatchedWork> VitalWork() const {
    return {{.name = "the follower", .work = &pulse_, .helpers = {&pool_.pulse()}}};
  }
  uint16_t admin_port() const { return servers_->grpc_port(); }
  uint16_t http_port() const { return servers_->http_port(); }

 private:
  // The earliest time given counts.
  void GiveUpAt(TimePoint time);
  void MakeFollower();
  Status StartServers();

  const ReceiverOptions options_;
  RealClock clock_;
  Metrics metrics_;
  PosixFileSystem files_;
  ThreadPool pool_;
  Lifecycle lifecycle_;
  Pulse pulse_;
  std::shared_ptr<Credentials> credentials_;  // null: plain
  AllowedUsers allowed_users_;
  std::atomic<TimePoint> give_up_at_{TimePoint::max()};  // for calls of the engine
  std::unique_ptr<SlimeFollower> follower_;
  std::unique_ptr<FollowerOperations> operations_;
  std::unique_ptr<DaemonServers> servers_;
};

void FollowerApp::Impl::MakeFollower() {
  const FollowOptions& follow = options_.follow;
  EngineLoader::MakeControl make_control;
  if (!follow.engine_url.empty()) {
    make_control = [this]() -> Result<std::unique_ptr<EngineControl>> {
      const FollowOptions& wanted = options_.follow;
      DWS_ASSIGN_OR_RETURN(
          std::unique_ptr<HttpControl> control,
          MakeHttpControl(
              {.client = {.url = wanted.engine_url,
                          .token_file = wanted.engine_token_file,
                          .ca_file = wanted.engine_ca,
                          .insecure = wanted.engine_insecure,
                          .cancelled = [this] { return clock_.Now() >= give_up_at_.load(); }},
               .kind = wanted.engine_kind == "auto" ? "" : wanted.engine_kind,
               .mode = wanted.engine_pause_mode,
               .checkpoint =
                   wanted.engine_checkpoint.empty() ? wanted.checkpoint : wanted.engine_checkpoint,
               .pulse = &pulse_},
              clock_));
      return std::unique_ptr<EngineControl>(std::move(control));
    };
  }
  follower_ = std::make_unique<SlimeFollower>(
      SlimeFollower::Parts{.files = files_,
                           .pool = pool_,
                           .clock = clock_,
                           .make_control = std::move(make_control),
                           .on_readiness =
                               [this](bool ready, const std::string& reason) {
                                 LogInfo("readiness", {{"ready", ready}, {"reason", reason}});
                                 if (ready) {
                                   lifecycle_.SetReady();
                                 } else {
                                   lifecycle_.SetNotReady(reason);
                                 }
                               },
                           .pulse = &pulse_},
      SlimeFollower::Options{.folder = follow.slime_dir,
                             .checkpoint = follow.checkpoint,
                             .poll = std::chrono::milliseconds(follow.poll_ms),
                             .pause_timeout = std::chrono::seconds(follow.load_timeout_seconds),
                             .stale = options_.stale()});
}

Status FollowerApp::Impl::StartServers() {
  DWS_CHECK(follower_ != nullptr);
  const ReceiverName name{.job_id = options_.job_id, .receiver_id = options_.receiver_id};
  operations_ = std::make_unique<FollowerOperations>(name, lifecycle_, *follower_, clock_);
  AddFollowerMetrics(metrics_, *follower_);
  DWS_ASSIGN_OR_RETURN(
      servers_, DaemonServers::Start({.job_id = options_.job_id,
                                      .socket = options_.socket,
                                      .allowed_users = allowed_users_,
                                      .listen = options_.listen,
                                      .http = options_.http,
                                      .insecure = options_.insecure,
                                      .credentials = credentials_},
                                     {.operations = *operations_,
                                      .lifecycle = lifecycle_,
                                      .metrics = metrics_,
                                      .clock = clock_,
                                      .draining = [this] { return follower_->view().drained; }},
                                     {}, {}));
  return OkStatus();
}

Status FollowerApp::Impl::Start() {
  DWS_RETURN_IF_ERROR(CheckOptions(options_));
  DWS_ASSIGN_OR_RETURN(allowed_users_, AllowedUsers::Parse(options_.allow_users));
  if (options_.tls.given()) {
    DWS_ASSIGN_OR_RETURN(
        credentials_,
        Credentials::Load({.files = options_.tls,
                           .required = ReceiverIdentity(options_.job_id, options_.receiver_id)}));
  }
  MakeFollower();
  DWS_RETURN_IF_ERROR(StartServers());
  follower_->Start();
  if (!options_.ports_file.empty()) {
    DWS_RETURN_IF_ERROR(WritePortsFile(files_, options_.ports_file, servers_->ports("admin")));
  }
  LogInfo("following", {{"folder", options_.follow.slime_dir},
                        {"checkpoint", options_.follow.checkpoint},
                        {"engine", options_.follow.engine_url},
                        {"admin_port", admin_port()},
                        {"http_port", http_port()}});
  return OkStatus();
}

void FollowerApp::Impl::GiveUpAt(TimePoint time) {
  TimePoint known = give_up_at_.load();
  while (time < known && !give_up_at_.compare_exchange_weak(known, time)) {
  }
  DWS_CHECK(give_up_at_.load() <= time);
}

void FollowerApp::Impl::Stop(std::chrono::milliseconds grace) {
  lifecycle_.SetStopping();
  GiveUpAt(clock_.Now() + grace);
  if (servers_ != nullptr) servers_->StopOperators();
  if (follower_ != nullptr) follower_->Stop();
  if (servers_ != nullptr) servers_->Shutdown();
}

FollowerApp::FollowerApp(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
FollowerApp::~FollowerApp() = default;

Result<std::unique_ptr<FollowerApp>> FollowerApp::Start(const ReceiverOptions& options) {
  auto impl = std::make_unique<Impl>(options);
  DWS_RETURN_IF_ERROR(impl->Start());
  return std::unique_ptr<FollowerApp>(new FollowerApp(std::move(impl)));
}

uint16_t FollowerApp::admin_port() const { return impl_->admin_port(); }
uint16_t FollowerApp::http_port() const { return impl_->http_port(); }
void FollowerApp::Stop(std::chrono::milliseconds grace) { impl_->Stop(grace); }
void FollowerApp::EndGrace() { impl_->EndGrace(); }
Status FollowerApp::ReloadCredentials() { return impl_->ReloadCredentials(); }
v1::StatusReply FollowerApp::status() const { return impl_->status(); }
void FollowerApp::ShowReadiness() { impl_->ShowReadiness(); }
std::vector<WatchedWork> FollowerApp::VitalWork() const { return impl_->VitalWork(); }

}  // namespace dws
