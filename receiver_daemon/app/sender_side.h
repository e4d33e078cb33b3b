// A receiver's ways to its senders, wired as its options say: connections, a shared directory
// instead of them (shared_links.h) or beside them (shared_beside.h).
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/pulse.h"
#include "common/base/status.h"
#include "receiver_daemon/options/receiver_options.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "receiver_daemon/transfer/shared/shared_beside.h"
#include "receiver_daemon/transfer/shared/shared_links.h"

namespace dws {

// What senders are called in status and messages: their addresses, or their ranks' folders.
std::vector<std::string> SenderNames(const ReceiverOptions& options);

// Lifecycle: Start, then Stop, which ends and waits for everything. Threads: safe from any.
class SenderSide {
 public:
  struct Parts {
    FileSystem& files;
    Subscription& subscription;  // of SenderNames
    const Clock& clock;
    Pulse& pulse;  // of the worker
  };

  // All of `parts` outlives it. Errors: those of the key's file. INVALID_ARGUMENT: an id that makes
  // no file's name.
  static Result<std::unique_ptr<SenderSide>> Open(const ReceiverOptions& options, PeerTls tls,
                                                  const Parts& parts);

  // What the pipeline works with.
  SenderGroup& senders();
  // The connections; without any where there is a directory instead.
  SyncLinks& links() { return *links_; }
  bool broadcasts() const { return broadcasts_.has_value(); }

  void Start();
  // Senders, or folders, are connected to anew.
  void Reconnect(const Status& reason);
  // Ends blocking calls, present and future. Acknowledgements still go.
  void CancelFetches();
  void Stop();

 private:
  SenderSide() = default;
  Status OpenShared(const ReceiverOptions& options, const Parts& parts);

  std::optional<nccl::BroadcastChannel::Parts> broadcasts_;  // none: takes part in none
  std::unique_ptr<SyncLinks> links_;
  std::unique_ptr<SharedLinks> shared_;   // null: no directory instead
  std::unique_ptr<SharedBeside> beside_;  // null: no directory beside
};

}  // namespace dws
