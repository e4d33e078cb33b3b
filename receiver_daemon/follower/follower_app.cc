#include "receiver_daemon/follower/follower_app.h"

#include <atomic>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/base/threads/thread_pool.h"
#include "common/service/metrics/metrics.h"
#include "receiver_daemon/engine_http/http_control.h"
#include "receiver_daemon/follower/follower_operations.h"
#include "receiver_daemon/follower/slime_follower.h"

namespace dws {
namespace {

// Members are declared in the order of construction, so each is destroyed before the ones it calls.
class FollowerApp final : public Daemon {
 public:
  explicit FollowerApp(const ReceiverOptions& options)
      : Daemon(options),
        options_(options),
        metrics_({{"dws_job", options.job_id}, {"receiver_id", options.receiver_id}}),
        pool_(options.threads) {}
  ~FollowerApp() override {
    Stop(std::chrono::milliseconds(0));
    CloseServers();
  }

  Status Start();
  void Stop(std::chrono::milliseconds grace) override;
  void EndGrace() override { GiveUpAt(clock_.Now()); }
  void Tick() override { follower_->ShowReadiness(); }
  std::vector<WatchedWork> VitalWork() const override {
    return {{.name = "the follower", .work = &liveness_, .helpers = {&pool_.liveness()}}};
  }

 private:
  // If it is called several times, the earliest time counts.
  void GiveUpAt(TimePoint time);
  Status MakeFollower();
  Status Serve();

  const ReceiverOptions options_;
  Metrics metrics_;
  ThreadPool pool_;
  Liveness liveness_;
  std::atomic<TimePoint> give_up_at_{TimePoint::max()};  // for calls of the engine
  std::unique_ptr<SlimeFollower> follower_;
  std::unique_ptr<FollowerOperations> operations_;
};

}  // namespace

Status FollowerApp::MakeFollower() {
  const FollowOptions& follow = options_.follow;
  DWS_ASSIGN_OR_RETURN(shared::VisibilityHook before_read,
                       shared::VisibilityHook::Make(follow.before_read, follow.slime_dir));
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
               .liveness = &liveness_},
              clock_));
      return std::unique_ptr<EngineControl>(std::move(control));
    };
  }
  follower_ = std::make_unique<SlimeFollower>(
      SlimeFollower::Parts{
          .files = files_,
          .pool = pool_,
          .clock = clock_,
          .make_control = std::move(make_control),
          .on_readiness = [this](bool ready,
                                 const std::string& reason) { ShowReadiness(ready, reason); },
          .liveness = &liveness_},
      SlimeFollower::Options{.folder = follow.slime_dir,
                             .checkpoint = follow.checkpoint,
                             .engine = follow.engine_url,
                             .poll = std::chrono::milliseconds(follow.poll_ms),
                             .pause_timeout = std::chrono::seconds(follow.load_timeout_seconds),
                             .before_read = std::move(before_read),
                             .before_read_required = follow.before_read_required,
                             .proof = *slime::ProofRuleNamed(follow.proof),
                             .stale = options_.stale()});
  return OkStatus();
}

Status FollowerApp::Serve() {
  DWS_CHECK(follower_ != nullptr);
  const ReceiverName name{.job_id = options_.job_id, .receiver_id = options_.receiver_id};
  const FollowOptions& follow = options_.follow;
  operations_ = std::make_unique<FollowerOperations>(
      name,
      FollowerOperations::Followed{
          .folder = follow.slime_dir, .checkpoint = follow.checkpoint, .engine = follow.engine_url},
      lifecycle_, *follower_, clock_);
  return StartServers({.operations = *operations_, .metrics = metrics_});
}

Status FollowerApp::Start() {
  DWS_RETURN_IF_ERROR(CheckOptions(options_));
  DWS_RETURN_IF_ERROR(LoadSecurity({ReceiverIdentity(options_.job_id, options_.receiver_id)}));
  DWS_RETURN_IF_ERROR(MakeFollower());
  DWS_RETURN_IF_ERROR(Serve());
  follower_->Start();
  DWS_RETURN_IF_ERROR(WritePorts("admin"));
  LogInfo("following", {{"folder", options_.follow.slime_dir},
                        {"checkpoint", options_.follow.checkpoint},
                        {"engine", options_.follow.engine_url},
                        {"admin_port", grpc_port()},
                        {"http_port", http_port()}});
  return OkStatus();
}

void FollowerApp::GiveUpAt(TimePoint time) {
  TimePoint known = give_up_at_.load();
  while (time < known && !give_up_at_.compare_exchange_weak(known, time)) {
  }
  DWS_CHECK(give_up_at_.load() <= time);
}

void FollowerApp::Stop(std::chrono::milliseconds grace) {
  lifecycle_.SetStopping();
  GiveUpAt(clock_.Now() + grace);
  StopOperators();
  if (follower_ != nullptr) follower_->Stop();
  ShutdownServers();
}

Result<std::unique_ptr<Daemon>> StartFollower(const ReceiverOptions& options) {
  auto app = std::make_unique<FollowerApp>(options);
  DWS_RETURN_IF_ERROR(app->Start());
  return std::unique_ptr<Daemon>(std::move(app));
}

}  // namespace dws
