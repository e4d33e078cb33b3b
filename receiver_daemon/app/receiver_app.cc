#include "receiver_daemon/app/receiver_app.h"

#include <chrono>
#include <map>
#include <optional>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/base/threads/thread_pool.h"
#include "common/ledger/file_version_ledger.h"
#include "common/service/history/recent_items.h"
#include "common/service/sockets/handle_socket.h"
#include "receiver_daemon/app/receiver_metrics.h"
#include "receiver_daemon/app/receiver_operations.h"
#include "receiver_daemon/app/receiver_status.h"
#include "receiver_daemon/app/sender_side.h"
#include "receiver_daemon/engine/attach_queue.h"
#include "receiver_daemon/engine/engine_registry.h"
#include "receiver_daemon/engine/engine_service.h"
#include "receiver_daemon/group/group_endpoint.h"
#include "receiver_daemon/peers/peer_server.h"
#include "receiver_daemon/transfer/subscription.h"
#include "receiver_daemon/worker/operator_requests.h"
#include "receiver_daemon/worker/worker.h"

namespace dws {
namespace {

// Trainer ranks: enough to keep the host's link busy while some of theirs are slow.
constexpr size_t kTransfersAtOnce = 16;

// Above those of any earlier process with this state folder, unless the wall clock was set back.
Generation FirstGeneration() {
  const auto since_epoch = std::chrono::system_clock::now().time_since_epoch();
  return Generation(static_cast<uint64_t>(
      std::chrono::duration_cast<std::chrono::microseconds>(since_epoch).count()));
}

// Members are declared in the order of construction, so each is destroyed before the ones it calls.
class ReceiverApp final : public Daemon {
 public:
  explicit ReceiverApp(const ReceiverOptions& options)
      : Daemon(options),
        options_(options),
        metrics_(options.job_id, options.receiver_id),
        pool_(options.threads),
        devices_(options.gpu_kernels),
        registry_(FirstGeneration(), changed_, grouped() ? Coverage::kShare : Coverage::kWhole,
                  &devices_) {}
  ~ReceiverApp() override {
    Stop(limits::kShutdownGrace);
    CloseServers();
  }

  Status Start();
  void Stop(std::chrono::milliseconds grace) override;
  void EndGrace() override { worker_->EndGrace(); }
  void Tick() override { worker_->ShowReadiness(); }
  // An error means that the process has lost a GPU.
  Status broken() const override { return devices_.lost(); }
  std::vector<WatchedWork> VitalWork() const override {
    return {
        {.name = "the commit worker", .work = &worker_liveness_, .helpers = {&pool_.liveness()}}};
  }

 private:
  bool grouped() const { return !options_.group.group_id.empty(); }
  void MakeGroup();
  Status StartPeerServer();
  Status StartEngineSide();
  Status Serve();

  const ReceiverOptions options_;
  ReceiverMetrics metrics_;
  RecentItems<v1::CommittedVersion> history_;
  ThreadPool pool_;
  ChangeSignal changed_;
  cuda::CudaDevices devices_;
  EngineRegistry registry_;
  OperatorRequests operator_requests_{changed_};
  Liveness worker_liveness_;  // of the worker; transfers mark it as waiting
  std::unique_ptr<ReceiverLedger> ledger_;
  std::unique_ptr<PeerServer> peer_server_;  // null: serves no other receivers
  std::unique_ptr<Subscription> subscription_;
  std::unique_ptr<SenderSide> senders_;
  std::unique_ptr<CommitGroup> group_;  // null: the engine has no other receiver
  std::unique_ptr<GroupEndpoint> group_endpoint_;
  std::unique_ptr<HandleSocket> handles_;
  std::unique_ptr<AttachQueue> attaches_;
  std::unique_ptr<Worker> worker_;
  std::unique_ptr<EngineServiceImpl> engine_service_;
  std::unique_ptr<ReceiverOperations> operations_;
};

}  // namespace

Status ReceiverApp::Start() {
  DWS_RETURN_IF_ERROR(CheckOptions(options_));
  DWS_RETURN_IF_ERROR(LoadSecurity({ReceiverIdentity(options_.job_id, options_.receiver_id)}));
  DWS_ASSIGN_OR_RETURN(
      ledger_, OpenReceiverLedger(files_, options_.state_dir,
                                  {.quarantine_damaged = options_.quarantine_damaged_ledger}));
  DWS_RETURN_IF_ERROR(StartPeerServer());
  subscription_ = std::make_unique<Subscription>(SenderNames(options_), ledger_->state().stream(),
                                                 changed_, clock_);
  DWS_ASSIGN_OR_RETURN(senders_, SenderSide::Open(options_,
                                                  {.credentials = credentials_,
                                                   .server_name = options_.tls_server_name,
                                                   .users = allowed_users_},
                                                  {.files = files_,
                                                   .subscription = *subscription_,
                                                   .clock = clock_,
                                                   .liveness = worker_liveness_,
                                                   .pool = pool_,
                                                   .peer_address = peer_server_ == nullptr
                                                                       ? std::string()
                                                                       : peer_server_->address()}));
  if (grouped()) MakeGroup();
  DWS_RETURN_IF_ERROR(StartEngineSide());
  DWS_RETURN_IF_ERROR(Serve());
  worker_->Start();
  senders_->Start();
  if (group_endpoint_ != nullptr) group_endpoint_->Start();
  std::map<std::string, uint16_t> others;
  if (peer_server_ != nullptr) others["peers"] = peer_server_->port();
  DWS_RETURN_IF_ERROR(WritePorts("admin", std::move(others)));
  LogInfo("serving", {{"socket", options_.socket},
                      {"admin_port", grpc_port()},
                      {"http_port", http_port()},
                      {"senders", subscription_->Peers().size()}});
  return OkStatus();
}

// It serves nothing until the worker offers memory.
Status ReceiverApp::StartPeerServer() {
  const ServePeersOptions& serve = options_.serve_peers;
  if (serve.listen.empty()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(peer_server_, PeerServer::Start({.listen = serve.listen,
                                                        .address = serve.address,
                                                        .bytes_per_second = serve.bytes_per_second,
                                                        .insecure = options_.insecure,
                                                        .credentials = credentials_,
                                                        .job_id = options_.job_id},
                                                       lifecycle_, clock_));
  return OkStatus();
}

void ReceiverApp::MakeGroup() {
  std::optional<VersionAt> decided;
  if (const auto& open = ledger_->state().decided(); open.has_value()) {
    decided = VersionAt{.stream = open->stream, .version = open->version};
  }
  group_ = std::make_unique<CommitGroup>(options_.group, options_.receiver_id, decided, registry_,
                                         clock_, changed_, options_.commit_policy);
  group_endpoint_ = std::make_unique<GroupEndpoint>(
      ReceiverName{.job_id = options_.job_id, .receiver_id = options_.receiver_id},
      PeerTls{.credentials = credentials_, .server_name = "", .users = allowed_users_}, *group_,
      clock_);
}

Status ReceiverApp::StartEngineSide() {
  DWS_CHECK(ledger_ != nullptr && subscription_ != nullptr && senders_ != nullptr);
  DWS_CHECK(grouped() == (group_ != nullptr));  // the worker commits alone without a group
  DWS_ASSIGN_OR_RETURN(handles_, HandleSocket::Listen({.path = options_.socket + ".handles",
                                                       .allowed = allowed_users_}));
  attaches_ = std::make_unique<AttachQueue>(*subscription_, registry_, *handles_, clock_, changed_);
  worker_ = std::make_unique<Worker>(
      Worker::Parts{
          .subscription = *subscription_,
          .registry = registry_,
          .senders = senders_->senders(),
          .sources = senders_->sources(),
          .ledger = *ledger_,
          .pool = pool_,
          .clock = clock_,
          .changed = changed_,
          .requests = operator_requests_,
          .on_readiness = [this](bool ready,
                                 const std::string& reason) { ShowReadiness(ready, reason); },
          .on_commit =
              [this](const CommitReport& report) {
                metrics_.OnCommit(report);
                history_.Add(HistoryRow(report));
              },
          .on_acknowledged = [this](Duration took) { metrics_.OnAcknowledged(took); },
          .on_forgotten =
              [this] {
                senders_->Reconnect(
                    UnavailableError("an operator made this daemon forget the stream"));
              },
          .liveness = &worker_liveness_,
          .group = group_.get(),
          .served = peer_server_ == nullptr ? nullptr : &peer_server_->weights()},
      Worker::Options{.prepare = {.spool_folder = options_.state_dir,
                                  .staging_bytes_max = options_.staging_bytes,
                                  .transfers_at_once = kTransfersAtOnce},
                      .pause_timeout = limits::kPauseDeadline,
                      .scrub = {.bytes_per_second_max = options_.scrub_bytes_per_second,
                                .pass = std::chrono::seconds(options_.scrub_pass_seconds)},
                      .cuda = {.duty = {.percent = options_.gpu_duty_percent}},
                      .stale = options_.stale(),
                      .commit_policy = options_.commit_policy});
  engine_service_ = std::make_unique<EngineServiceImpl>(
      *attaches_, registry_, worker_->boundary(), handles_->path(), clock_,
      EngineServiceImpl::Questions{
          .why = [this] { return WhyEngineWaits(worker_->status(), *subscription_); },
          .version =
              [this] {
                const std::optional<VersionAt> live = worker_->status().live;
                return live.has_value() ? live->version.value() : 0;
              }});
  return OkStatus();
}

Status ReceiverApp::Serve() {
  DWS_CHECK(worker_ != nullptr && engine_service_ != nullptr);
  DWS_CHECK((group_ != nullptr) == (group_endpoint_ != nullptr));
  operations_ = std::make_unique<ReceiverOperations>(
      ReceiverName{.job_id = options_.job_id, .receiver_id = options_.receiver_id},
      ReceiverOperations::Parts{.lifecycle = lifecycle_,
                                .subscription = *subscription_,
                                .registry = registry_,
                                .sources = senders_->sources(),
                                .worker = *worker_,
                                .requests = operator_requests_,
                                .clock = clock_,
                                .history = history_,
                                .group = group_.get(),
                                .broadcasts = senders_->broadcasts() ? &senders_->links() : nullptr,
                                .host_share = senders_->host_share(),
                                .store = senders_->store(),
                                .peers = peer_server_.get(),
                                .view = options_.view});
  // Engines hand memory over, so they are on this machine: their service is on the unix socket
  // only.
  DaemonServers::Services local = {
      {.name = "dws.v1.EngineService", .service = engine_service_.get()}};
  DaemonServers::Services for_others;
  if (group_endpoint_ != nullptr && group_endpoint_->leads()) {
    local.push_back({.name = "dws.v1.GroupService", .service = group_endpoint_->AddService()});
    for_others.push_back({.name = "dws.v1.GroupService", .service = group_endpoint_->AddService()});
  }
  return StartServers({.operations = *operations_,
                       .metrics = metrics_.registry(),
                       .local = std::move(local),
                       .remote = std::move(for_others),
                       .plain_peers = PlainPeerNames(options_)});
}

void ReceiverApp::Stop(std::chrono::milliseconds grace) {
  lifecycle_.SetStopping();
  // 1. No new engine attaches.
  // 2. The worker finishes. Only a wait for a pause can block it, and ending the leases ends that.
  // 3. Leases and memory end.
  // 4. Senders, which receive acknowledgements until here, and the group, which receives what was
  //    written.
  // 5. Servers. The calls that are left only watch.
  if (attaches_ != nullptr) attaches_->Stop();
  if (senders_ != nullptr) senders_->CancelFetches();
  StopOperators();
  const bool ended = worker_ == nullptr || worker_->RequestStop(grace);
  const Status reason = UnavailableError("the receiver is shutting down");
  if (!ended) registry_.EndAll(reason);
  if (worker_ != nullptr) worker_->Join();
  registry_.EndAll(reason);
  if (peer_server_ != nullptr) {
    peer_server_->weights().Withdraw();
    peer_server_->Stop();
  }
  if (senders_ != nullptr) senders_->Stop();
  if (group_endpoint_ != nullptr) group_endpoint_->Stop();
  ShutdownServers();
}

Result<std::unique_ptr<Daemon>> StartReceiver(const ReceiverOptions& options) {
  auto app = std::make_unique<ReceiverApp>(options);
  DWS_RETURN_IF_ERROR(app->Start());
  return std::unique_ptr<Daemon>(std::move(app));
}

}  // namespace dws
