// How a receiver reaches its senders, as its options say: over connections, or through a shared
// directory instead (shared_links.h); and the sources that bytes come from, in their order.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/cancellation.h"
#include "common/base/threads/liveness.h"
#include "common/sources/source_chain.h"
#include "receiver_daemon/app/shared_bases.h"
#include "receiver_daemon/options/receiver_options.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "receiver_daemon/transfer/host/host_share.h"
#include "receiver_daemon/transfer/peers/peer_source.h"
#include "receiver_daemon/transfer/shared/shared_links.h"

namespace dws {

// The senders' names in status and messages: their addresses, or their ranks' folders.
std::vector<std::string> SenderNames(const ReceiverOptions& options);

// Lifecycle: Start, then Stop, which ends and waits for everything. Threads: safe from any.
class SenderSide {
 public:
  struct Parts {
    FileSystem& files;
    Subscription& subscription;  // made with SenderNames
    const Clock& clock;
    Liveness& liveness;  // of the worker
    ThreadPool& pool;
    std::string peer_address = {};  // where this receiver serves others; empty: nowhere
  };

  // All of `parts` outlives it. Errors of reading the key's file, and of HostFolder::Open.
  // INVALID_ARGUMENT: an id that cannot be a file name.
  static Result<std::unique_ptr<SenderSide>> Open(const ReceiverOptions& options,
                                                  const PeerTls& tls, const Parts& parts);

  Senders& senders();
  SourceChain& sources() { return *sources_; }
  // The connections; has none if there is a directory instead.
  SyncLinks& links() { return *links_; }
  // Null: nothing is shared with other receivers of the host.
  const HostShare* host_share() const { return host_; }
  // The first one of the shared directory's places; null: there is no store.
  const s3::S3FileSystem* store() const;
  bool broadcasts() const { return broadcasts_.has_value(); }

  void Start();
  // Connects to senders, or opens their folders, again.
  void Reconnect(const Status& reason);
  // Ends blocking calls, current and future. Acknowledgements are still sent.
  void CancelFetches();
  void Stop();

 private:
  SenderSide() = default;
  // Opens the sources beside and by the connections, best first, for deltas as for full tensors.
  Status OpenSources(const ReceiverOptions& options, const PeerTls& tls, const Parts& parts);
  Status OpenSharedDir(const SharedBase& base, uint32_t ranks, const ReceiverOptions& options,
                       const Parts& parts);
  Status OpenSharedLinks(const ReceiverOptions& options, const Parts& parts);

  std::optional<nccl::BroadcastChannel::Parts> broadcasts_;  // none: takes part in no broadcasts
  Cancellation cancellation_;                                // of waits for sources
  Cancellation stopping_;          // requests that write to a store; reports come until then
  std::vector<SharedBase> bases_;  // of the shared directory
  std::unique_ptr<SyncLinks> links_;
  std::unique_ptr<SharedLinks> shared_;  // null: no directory instead
  std::vector<std::unique_ptr<Source>> owned_;
  const HostShare* host_ = nullptr;  // of these; null: shares nothing with other receivers
  PeerSource* peers_ = nullptr;      // of these; null: reads no other receivers
  std::unique_ptr<SourceChain> sources_;
};

}  // namespace dws
