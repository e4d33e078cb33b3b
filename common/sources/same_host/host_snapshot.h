// The snapshot of a sender on this host, as this process maps it: asked for over the connection,
// passed over the sender's handle socket, kept from transfer to transfer.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/layout.h"
#include "common/model/stream_id.h"
#include "common/service/peers/active_calls.h"
#include "common/service/sockets/unix_socket.h"
#include "common/transport/same_host/host_id.h"
#include "common/transport/same_host/snapshot_memory.h"
#include "proto/sync.grpc.pb.h"

namespace dws {

using MappedSnapshot = std::shared_ptr<const SnapshotMemory>;

// Lifecycle: one for each sender. Threads: safe from any.
class HostSnapshot {
 public:
  using PeerCheck = std::function<Status(const grpc::ClientContext&)>;

  struct Options {
    AllowedUsers users;              // whose handle sockets are trusted
    std::string host_id = HostId();  // the sender has to have the same
    // Ask the sender at each Open whether a mapped snapshot is still its own. Otherwise the caller
    // calls Forget as soon as it may have another one.
    bool asks_again = true;
  };
  explicit HostSnapshot(Options options) : options_(std::move(options)) {}

  const AllowedUsers& users() const { return options_.users; }

  // The snapshot of what the sender publishes from now on, for `layout` of `stream`.
  // FAILED_PRECONDITION: the sender is on another host, or its handle socket cannot be reached from
  // here, or is not trusted, which stays so. UNAVAILABLE and other errors are the call's.
  Result<MappedSnapshot> Open(v1::SyncService::Stub& stub, ActiveCalls& calls,
                              const PeerCheck& check_peer, const StreamId& stream,
                              const RankLayout& layout);

  // Called when the sender may have another snapshot. Releases the mapped one, so that its memory
  // is freed.
  void Forget();

 private:
  // The mapped snapshot (null: none of that layout), and how often Forget was called.
  std::pair<MappedSnapshot, uint64_t> Mapped(const RankLayout& layout);

  const Options options_;
  Mutex mutex_;
  MappedSnapshot mapped_ GUARDED_BY(mutex_);
  Digest layout_ GUARDED_BY(mutex_);  // of it
  uint64_t forgotten_ GUARDED_BY(mutex_) = 0;
};

}  // namespace dws
