// The receiver's end of one Sync stream: hands messages on, writes what is queued, one write in
// flight.
#pragma once

#include <deque>
#include <functional>
#include <memory>
#include <optional>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/service/security/access.h"
#include "proto/sync.grpc.pb.h"

namespace dws {

// Lifecycle: owns itself until gRPC is done with it; whoever started it shares it. Threads: safe
// from any.
class SyncCall final : public grpc::ClientBidiReactor<v1::SyncUp, v1::SyncDown> {
 public:
  struct Callbacks {
    // On gRPC's threads, one at a time, never after on_done. Must not block. An error ends the
    // call. `peer` is who said it.
    std::function<Status(const v1::SyncDown&, const Peer& peer)> on_message;
    std::function<void(const Status&)> on_done;
  };

  static std::shared_ptr<SyncCall> Start(v1::SyncService::Stub& stub, v1::SyncUp hello,
                                         Callbacks callbacks);

  // Queues a message; dropped when the call is ending, or limits::kSyncQueueMax wait.
  void Send(v1::SyncUp message);
  void Cancel(const Status& reason);

  void OnReadDone(bool ok) override;
  void OnWriteDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  explicit SyncCall(Callbacks callbacks) : callbacks_(std::move(callbacks)) {}
  // Starts the next write if none is in flight. Called without the lock.
  void Pump();
  // After this nothing is written any more.
  void EndWrites();

  const Callbacks callbacks_;
  std::shared_ptr<SyncCall> self_;
  grpc::ClientContext context_;
  std::optional<Peer> peer_;  // since the first message; of the reactions
  v1::SyncDown down_;
  v1::SyncUp up_;  // in flight

  Mutex mutex_;
  std::deque<v1::SyncUp> queue_ GUARDED_BY(mutex_);
  bool writing_ GUARDED_BY(mutex_) = false;
  bool ending_ GUARDED_BY(mutex_) = false;
  bool held_ GUARDED_BY(mutex_) = true;  // gRPC's hold, which allows writes from outside reactions
  Status reason_ GUARDED_BY(mutex_);     // ours, for ending it
};

}  // namespace dws
