// The sender's end of one Sync stream: passes acknowledgements to the hub and writes the messages
// that are due, one at a time.
#pragma once

#include <atomic>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/model/limits.h"
#include "common/service/grpc/server_stream.h"
#include "common/service/security/access.h"
#include "common/transport/same_host/host_id.h"
#include "proto/sync.grpc.pb.h"
#include "sender_daemon/metrics/sender_metrics.h"
#include "sender_daemon/publish/snapshot_recheck.h"
#include "sender_daemon/serve/broadcaster.h"
#include "sender_daemon/serve/peer_directory.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "sender_daemon/serve/refine_request.h"

namespace dws {

// Lifecycle: owns itself until its end; the hub shares it. Threads: gRPC's and the hub's.
class SyncStream final : public ServerStream<v1::SyncUp, v1::SyncDown>,
                         public SyncConnection,
                         public BroadcastConnection,
                         public std::enable_shared_from_this<SyncStream> {
 public:
  // The parts it uses; all must outlive it.
  struct Parts {
    ReceiverHub& hub;
    SenderMetrics& metrics;
    SnapshotRecheck& recheck;
    std::function<void(RefineRequest)> refine;  // never blocks
    // A receiver follows a view. `refused` is called if it cannot. Never blocks.
    std::function<void(const std::string& view, std::function<void(const Status&)> refused)>
        follow =
            [](const std::string& /*view*/, const std::function<void(const Status&)>& refused) {
              refused(UnimplementedError("this sender has no views"));
            };
    Broadcaster* broadcaster = nullptr;  // null: there are no broadcasts
    PeerDirectory* peers = nullptr;      // null: receivers do not serve each other
    std::string host_id = HostId();      // what this sender says of its host
  };
  // `peer` is the client that opened the stream, according to its certificate.
  static SyncStream* Start(const Parts& parts, Peer peer);

  void WelcomeDue() override {
    Update([this] { welcome_due_ = announce_due_ = true; });
  }
  void AnnounceDue() override {
    Update([this] { announce_due_ = true; });
  }
  void ReplacingDue() override {
    Update([this] { replacing_due_ = true; });
  }
  void KeepaliveDue() override {
    Update([this] { keepalive_due_ = true; });
  }
  bool early_deltas() const override { return early_deltas_.load(); }
  void Close(const Status& reason) override { EndNow(reason); }
  // A receiver that misses messages would miss broadcasts that the other members wait in.
  void Say(v1::SyncDown message) override { Send(std::move(message)); }

 private:
  SyncStream(const Parts& parts, Peer peer)
      : ServerStream("the receiver", limits::kBroadcastQueueMax),
        hub_(parts.hub),
        metrics_(parts.metrics),
        recheck_(parts.recheck),
        refine_(parts.refine),
        follow_(parts.follow),
        broadcaster_(parts.broadcaster),
        peers_(parts.peers),
        peer_(std::move(peer)) {}
  Status OnMessage(const v1::SyncUp& message) override;
  void OnEnd(const Status& reason) override;
  Fill Next() override;
  Status HandleUp(const v1::SyncUp& message);
  Status HandleAck(ConnectionId connection, const v1::Ack& ack);
  Status HandleHello(const v1::Hello& hello);
  Status HandleRefine(const v1::Refine& refine);
  void AnswerRefine(uint64_t id, const Status& status);
  void Recheck(const StreamId& stream, const v1::Nack& nack);
  std::string view() const;
  void RememberAnnounced(const RankState& state);
  void OnCommitted(WeightVersion version);

  ReceiverHub& hub_;
  SenderMetrics& metrics_;
  SnapshotRecheck& recheck_;
  const std::function<void(RefineRequest)> refine_;
  const std::function<void(const std::string&, std::function<void(const Status&)>)> follow_;
  Broadcaster* const broadcaster_;
  PeerDirectory* const peers_;
  const Peer peer_;

  std::optional<ConnectionId> connection_ GUARDED_BY(mutex_);
  std::string view_ GUARDED_BY(mutex_);  // the view that the receiver follows; set with connection_
  bool welcome_due_ GUARDED_BY(mutex_) = false;
  bool announce_due_ GUARDED_BY(mutex_) = false;
  bool replacing_due_ GUARDED_BY(mutex_) = false;
  bool keepalive_due_ GUARDED_BY(mutex_) = false;
  std::optional<v1::RefineReply> refine_reply_ GUARDED_BY(mutex_);  // a newer one replaces it
  // The receiver's. Without the lock: the hub asks with its own held, which Next takes inside this.
  std::atomic<bool> early_deltas_{false};
  // The newest version announced on this stream, and when it was first announced.
  std::optional<WeightVersion> announced_ GUARDED_BY(mutex_);
  TimePoint announced_at_ GUARDED_BY(mutex_);
};

}  // namespace dws
