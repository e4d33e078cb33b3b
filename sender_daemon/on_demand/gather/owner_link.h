// The connection of a sender to the sender of one trainer rank: what that rank publishes, and the
// calls that bring its bytes.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/peers/active_calls.h"
#include "common/service/peers/change_signal.h"
#include "common/service/peers/stream_link.h"
#include "common/sources/sender/sender_channel.h"
#include "common/sources/sender/sender_link.h"
#include "proto/train.grpc.pb.h"
#include "sender_daemon/on_demand/gather/train_listener.h"

namespace dws {

// The two ends of the connection.
struct OwnerLinkOptions {
  std::string job_id;
  TrainerRank self;     // whose sender this is
  TrainerRank owner;    // whose sender is asked; may be `self`
  std::string address;  // one that CheckPeerAddress accepts
  PeerTls tls = {};
  std::string host_id;  // HostSnapshot::Options
};

// Where an owner's sender is.
struct OwnerHost {
  std::string id;
  uint64_t cache_bytes = 0;       // that it has for weights of other hosts
  uint64_t accumulate_bytes = 0;  // for sums of its host's gradients
};

// Lifecycle: connects with its first Tick; Stop ends calls, present and future, and waits for the
// stream's end. Threads: safe from any.
class OwnerLink final : public SenderLink {
 public:
  // `changed` is notified of each change of what the functions below return; `listener` hears what
  // the owner's sender says of minibatches. They and `clock` outlive the link.
  OwnerLink(OwnerLinkOptions options, ChangeSignal& changed, TrainListener& listener,
            const Clock& clock);
  ~OwnerLink() override;

  // Called every limits::kTick. Cancels the transfers of a stream that is silent.
  void Tick();
  void Stop();

  // The layout of the owner in `stream`. UNAVAILABLE: not known yet, with the reason.
  // FAILED_PRECONDITION: the owner is in a later incarnation of the trainer.
  Result<SenderWelcome> Registered(const StreamId& stream) const;
  // Like Registered, for an owner that has published `at.version`. UNAVAILABLE also: it has not
  // published it yet. ABORTED: it no longer retains it.
  Result<SenderWelcome> Has(const VersionAt& at) const;
  // None: it is not connected.
  std::optional<OwnerHost> host() const;
  // "trainer rank 3 at HOST:PORT"
  std::string name() const;
  const OwnerLinkOptions& options() const { return options_; }

  // Drops the message if there is no connection.
  void Send(v1::TrainMessage message);
  // OK: its sender answers. UNAVAILABLE: it does not, with the reason; other errors: it refuses us.
  Status connected() const;
  // For other calls of its sender, while it is connected.
  std::shared_ptr<grpc::Channel> channel() const { return channel_.channel(); }
  ActiveCalls& calls() { return calls_; }
  // See SenderChannel::CheckSender.
  Status CheckPeer(const grpc::ClientContext& context) const;

  Fetcher fetcher(const SyncTarget& target, TrainerRank rank) override;
  LinkSpeed& speed() override { return speed_; }
  HostSnapshot& snapshot() override { return snapshot_; }
  bool early_deltas() const override { return false; }

 private:
  using TrainLink = StreamLink<v1::TrainUp, v1::TrainDown>;

  v1::TrainUp Hello() const;
  Status OnMessage(const v1::TrainDown& message, const Peer& peer, bool first);
  Status OnWelcome(const v1::Welcome& message, const Peer& peer);
  // FAILED_PRECONDITION: it cannot follow the last one.
  Status CheckFollows(const SenderWelcome& welcome) const REQUIRES(mutex_);
  Status OnPublished(const v1::Published& message);
  Status OnHost(const v1::TrainHost& message);
  void OnDone(const Status& reason);

  const OwnerLinkOptions options_;
  ChangeSignal& changed_;
  TrainListener& listener_;
  SenderChannel channel_;
  ActiveCalls calls_;
  LinkSpeed speed_;
  HostSnapshot snapshot_;

  mutable Mutex mutex_;
  Status connected_ GUARDED_BY(mutex_);  // why it is not; OK: it is
  std::optional<SenderWelcome> welcome_ GUARDED_BY(mutex_);
  std::vector<WeightVersion> versions_ GUARDED_BY(mutex_);  // ascending, of welcome_
  std::optional<OwnerHost> host_ GUARDED_BY(mutex_);
  TrainLink stream_;
};

}  // namespace dws
