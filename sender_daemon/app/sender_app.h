// The sender with all parts connected: owns every part, starts them in order, stops them in
// reverse.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/executor.h"
#include "common/base/file_system.h"
#include "common/base/pulse.h"
#include "common/base/status.h"
#include "common/base/thread_pool.h"
#include "common/memory/cuda/cuda_devices.h"
#include "common/service/lifecycle.h"
#include "common/service/program/daemon_servers.h"
#include "common/service/security/credentials.h"
#include "common/service/sockets/handle_socket.h"
#include "common/service/sockets/unix_socket.h"
#include "common/transport/nccl/broadcast_parts.h"
#include "sender_daemon/app/sender_operations.h"
#include "sender_daemon/metrics/sender_metrics.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/publish/snapshot_recheck.h"
#include "sender_daemon/serve/broadcaster.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/serve/sync_service.h"
#include "sender_daemon/shared/shared_publisher.h"
#include "sender_daemon/slime/slime_publisher.h"
#include "sender_daemon/trainer/drain_switch.h"
#include "sender_daemon/trainer/trainer_service.h"
#include "sender_daemon/trainer/trainer_session.h"

namespace dws {

struct SenderOptions {
  std::string job_id = "default";
  uint32_t trainer_rank = 0;
  // gRPC for the trainer, receivers of this host and the operator. The handle socket is
  // <socket>.handles.
  std::string socket;
  std::string listen;  // gRPC for receivers of other hosts and the operator; empty: none
  std::string http;    // empty: none
  std::string state_folder;
  bool quarantine_damaged_ledger = false;
  std::string ports_file;  // empty: none
  uint64_t retain_bytes = uint64_t{1} << 30;
  size_t retain_versions = 64;
  std::chrono::seconds laggard_after = limits::kLaggardAfterDefault;  // zero: never left out
  ProfileChoice profile = ProfileChoice::kAuto;
  size_t threads = 1;  // for captures
  bool insecure = false;
  TlsFiles tls;                          // none: plain
  std::vector<std::string> allow_users;  // names or uids (unix_socket.h)
  ByteSpan gpu_kernels;                  // kernel_image.h; empty: trainers in host memory only
  BroadcastOptions broadcasts;
  std::chrono::milliseconds broadcast_timeout = limits::kBroadcastTimeoutDefault;
  SharedDirOptions shared_dir;
  SlimeDirOptions slime_dir;
};

// Lifecycle: Start, then Stop (or the destructor). Threads: one.
class SenderApp {
 public:
  static Result<std::unique_ptr<SenderApp>> Start(SenderOptions options);
  ~SenderApp();
  // Versions that are being captured or sealed have `grace` to be recorded. A second call does
  // nothing.
  void Stop(std::chrono::milliseconds grace = limits::kShutdownGrace);
  // Ends the grace of a Stop that runs on another thread.
  void EndGrace();

  // What an operator sees. Call before Stop. Threads: safe from any.
  v1::StatusReply status() const { return servers_->status(); }
  // Not OK if only a new process can continue, with the reason: this one has lost a GPU. Threads:
  // safe from any.
  Status broken() const { return devices_.lost(); }
  // What the watchdog watches; valid while the app lives.
  std::vector<WatchedWork> VitalWork() const;

  // Reads the TLS files again; on an error the previous ones stay in use. OK without TLS. Threads:
  // safe from any.
  Status ReloadCredentials();

 private:
  explicit SenderApp(SenderOptions options);
  Status StartSecurity();
  Status StartParts();
  Status StartShared();
  Status StartSlime();
  SharedView ViewShared() const;
  SlimeView ViewSlime() const;
  // Starts it with the broadcaster and connects both to the hub and the publishers.
  void StartPipeline();
  Status StartServers();
  // Operations, and what operators and scrapers are shown.
  void StartOperations();
  Status ForgetStream(const StreamId& stream);
  void UpdateReadiness();
  // Wait until all calls, or all records, are done. False: the deadline or EndGrace came first.
  bool AwaitTrainerCalls(TimePoint deadline);
  bool AwaitRecords(TimePoint deadline);
  // Waits until `settled` returns true. `what` names the publisher in the log.
  void AwaitPublisher(const std::function<bool()>& settled, TimePoint deadline,
                      std::string_view what);

  const SenderOptions options_;
  const RealClock clock_;
  PosixFileSystem files_;
  Lifecycle lifecycle_;
  Mutex telling_mutex_;
  Mutex readiness_mutex_;
  bool registered_ GUARDED_BY(readiness_mutex_) = false;
  Status trouble_ GUARDED_BY(readiness_mutex_);
  bool stopped_ = false;
  Mutex stop_mutex_;
  CondVar stop_changed_;
  bool trainer_calls_ended_ GUARDED_BY(stop_mutex_) = false;
  bool grace_over_ GUARDED_BY(stop_mutex_) = false;

  SenderMetrics metrics_;
  DrainSwitch drain_;
  cuda::CudaDevices devices_;
  std::shared_ptr<Credentials> credentials_;  // null: plain
  AllowedUsers allowed_users_;
  std::unique_ptr<SharedSenderLedger> ledger_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<ReceiverHub> hub_;
  std::unique_ptr<Broadcaster> broadcaster_;  // null: no broadcasts
  std::unique_ptr<SnapshotRecheck> recheck_;
  std::unique_ptr<SharedPublisher> shared_publisher_;  // null: no shared directory
  std::unique_ptr<SlimePublisher> slime_publisher_;    // null: no slime folder
  std::unique_ptr<PublishPipeline> pipeline_;
  std::unique_ptr<HandleSocket> handles_;
  std::unique_ptr<Executor> trainer_executor_;  // one thread: the trainer's calls are serial
  std::unique_ptr<Executor> delta_executor_;
  std::unique_ptr<Executor> full_executor_;
  std::unique_ptr<TrainerSession> session_;
  std::unique_ptr<TrainerServiceImpl> trainer_service_;
  std::atomic<size_t> full_transfers_{0};
  std::unique_ptr<SyncServiceImpl> local_sync_service_;   // of the unix socket
  std::unique_ptr<SyncServiceImpl> remote_sync_service_;  // of --listen
  std::unique_ptr<SenderOperations> operations_;
  std::unique_ptr<DaemonServers> servers_;
};

}  // namespace dws
