// The connection to one sender: a channel, its Sync stream with reconnection and keepalive, its
// blocking calls.
#pragma once

#include <memory>
#include <optional>
#include <string>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "proto/sync.grpc.pb.h"
#include "receiver_daemon/active_calls.h"
#include "receiver_daemon/stream_call.h"
#include "receiver_daemon/transfer/fetch.h"
#include "receiver_daemon/transfer/link_speed.h"
#include "receiver_daemon/transfer/sender_channel.h"
#include "receiver_daemon/transfer/subscription.h"

namespace dws {

// A delta object that came inside its announcement.
struct InlineObject {
  StreamId stream;
  WeightVersion base;
  WeightVersion version;
  std::string bytes;
};

// Lifecycle: connects with its first Tick; Stop waits for the stream's end. Threads: safe from any.
class SyncLink {
 public:
  struct Identity {
    std::string job_id;
    std::string receiver_id;
  };

  SyncLink(SenderIndex index, const std::string& address, Identity identity, PeerTls tls,
           Subscription& subscription, const Clock& clock);

  // Connects when it is time, and drops a stream that has been silent for
  // limits::kKeepaliveTimeout.
  void Tick();
  void Send(v1::SyncUp message);
  void Stop();

  // Of what this sender's rank publishes.
  Fetcher fetcher(TrainerRank rank);
  ActiveCalls& calls() { return calls_; }
  LinkSpeed& speed() { return speed_; }
  // The delta base -> version, if the last announcement brought it; else null.
  std::shared_ptr<const InlineObject> Inline(const StreamId& stream, WeightVersion base,
                                             WeightVersion version);

 private:
  using SyncCall = StreamCall<v1::SyncUp, v1::SyncDown>;

  Status OnMessage(const v1::SyncDown& message, const Peer& peer);
  void KeepInline(std::shared_ptr<const InlineObject> object);
  void OnDone(const Status& reason);
  v1::SyncUp Hello(const std::optional<VersionAt>& live) const;
  // Says again what is live: an acknowledgement may have been lost, or a restarted sender forgot
  // it.
  void CatchUp();

  const SenderIndex index_;
  const std::string address_;
  const Identity identity_;
  Subscription& subscription_;
  const Clock& clock_;
  SenderChannel channel_;
  ActiveCalls calls_;
  LinkSpeed speed_;

  Mutex mutex_;
  CondVar done_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  bool starting_ GUARDED_BY(mutex_) = false;  // a call is about to be in call_
  std::shared_ptr<SyncCall> call_ GUARDED_BY(mutex_);
  bool done_early_ GUARDED_BY(mutex_) = false;  // it ended before it was in call_
  bool heard_ GUARDED_BY(mutex_) = false;       // something arrived on this call
  std::shared_ptr<const InlineObject> inline_ GUARDED_BY(mutex_);  // of this call
  TimePoint last_heard_ GUARDED_BY(mutex_);
  TimePoint next_attempt_ GUARDED_BY(mutex_);
  Duration delay_ GUARDED_BY(mutex_);
};

}  // namespace dws
