// The connection to one sender: a channel, its Sync stream with reconnection and keepalive, its
// blocking calls.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/service/peers/active_calls.h"
#include "common/service/peers/receiver_name.h"
#include "common/service/peers/stream_link.h"
#include "common/sources/same_host/host_snapshot.h"
#include "common/sources/sender/fetch.h"
#include "common/sources/sender/sender_channel.h"
#include "common/sources/sender/sender_link.h"
#include "proto/sync.grpc.pb.h"
#include "receiver_daemon/transfer/broadcast/broadcast_member.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

// A delta object that an announcement contained.
struct InlineObject {
  StreamId stream;
  WeightVersion base;
  WeightVersion version;
  std::string bytes;
};

// Lifecycle: connects with its first Tick; Stop waits for the stream's end. Threads: safe from any.
class SyncLink final : public SenderLink {
 public:
  SyncLink(SenderIndex index, const std::string& address, ReceiverName name, std::string view,
           const PeerTls& tls, Subscription& subscription, const Clock& clock);

  // Takes part in this sender's broadcasts. Called before the first Tick.
  void JoinBroadcasts(nccl::BroadcastChannel::Parts parts, uint64_t object_bytes_max);

  // This receiver serves others at this address, and reads from them. Called before the first Tick.
  void ServePeersAt(std::string address) { peer_address_ = std::move(address); }

  // Fetches this sender's deltas while it captures them. Called before the first Tick.
  void FetchDeltasEarly() { early_deltas_ = true; }
  bool early_deltas() const override { return early_deltas_; }

  // See StreamLink. Also cancels the transfers of a stream that is silent, and tries a refused
  // welcome again.
  void Tick();
  void Send(v1::SyncUp message) { stream_.Send(std::move(message)); }
  // Ends the stream: the next one begins with a Welcome.
  void Reconnect(const Status& reason) { stream_.Drop(reason); }
  // Ends blocking calls, present and future. Acknowledgements still go.
  void CancelFetches();
  void Stop();

  Fetcher fetcher(const SyncTarget& target, TrainerRank rank) override;
  LinkSpeed& speed() override { return speed_; }
  HostSnapshot& snapshot() override { return snapshot_; }
  // Null: takes part in no broadcasts.
  BroadcastMember* broadcasts() { return broadcasts_.get(); }
  // The delta base -> version, if the last announcement brought it; else null.
  std::shared_ptr<const InlineObject> Inline(const StreamId& stream, WeightVersion base,
                                             WeightVersion version);

 private:
  using SyncStream = StreamLink<v1::SyncUp, v1::SyncDown>;

  Status OnMessage(const v1::SyncDown& message, const Peer& peer, bool first);
  Status OnWelcome(const v1::Welcome& message, const Peer& peer);
  Status OnAnnounce(const v1::Announce& message, uint64_t nonce);
  void TellRefusal(const SenderAnnouncement& announcement, uint64_t nonce) REQUIRES(order_mutex_);
  Status OnReplacing(const v1::Replacing& message);
  void OnRefineReply(const v1::RefineReply& message);
  Status OnBroadcast(const v1::SyncDown& message);
  void OnDone(const Status& reason, bool lost);
  void KeepInline(std::shared_ptr<const InlineObject> object);
  v1::SyncUp Hello() const;
  // Acknowledges the live version again: an acknowledgement may have been lost, or a restarted
  // sender forgot it.
  void CatchUp();
  // Asks for cuts that the sender's layout lacks, and again while it lacks them.
  void AskForCuts();

  const SenderIndex index_;
  const std::string address_;
  const ReceiverName name_;
  const std::string view_;
  std::string peer_address_;  // empty: serves nobody
  bool early_deltas_ = false;
  Status unheard_;  // why the last call ended; of the stream's callbacks
  Subscription& subscription_;
  SenderChannel channel_;
  ActiveCalls calls_;
  LinkSpeed speed_;
  HostSnapshot snapshot_;

  // What was refused although the sender keeps the protocol. It is tried again, because the stream
  // that the receiver follows may change and the sender does not repeat itself; and after
  // limits::kRefusedStreamMax over another connection, because another sender may have answered.
  struct Refused {
    SenderWelcome welcome;
    std::optional<std::pair<uint64_t, SenderAnnouncement>> announcement;  // with its nonce
    TimePoint retry_at;
  };
  // Tries a refused welcome again. An error must end the stream: the sender breaks the protocol, or
  // has been refused for too long.
  Status RetryRefused();

  const Clock& clock_;
  // State of AskForCuts; used by Tick only.
  uint64_t cuts_seen_ = 0;         // the subscription's revision when it was last asked
  TimePoint ask_at_;               // the earliest time to ask for the same again
  std::optional<CutOrder> asked_;  // last
  Status refusal_;                 // last, as logged; of the stream's thread
  Mutex mutex_;
  std::shared_ptr<const InlineObject> inline_ GUARDED_BY(mutex_);  // of this stream
  Mutex order_mutex_;  // held while the subscription is updated: keeps the order of the messages
  std::optional<Refused> refused_ GUARDED_BY(order_mutex_);          // of this stream
  std::optional<TimePoint> refused_since_ GUARDED_BY(order_mutex_);  // of this stream
  std::string refused_why_
      GUARDED_BY(order_mutex_);  // as logged last; empty: it was accepted since
  SyncStream stream_;
  std::unique_ptr<BroadcastMember> broadcasts_;  // sends on stream_, and ends before it
};

}  // namespace dws
