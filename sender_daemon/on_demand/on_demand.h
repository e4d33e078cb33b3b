// Training on demand in one sender: its parts, in the order in which they need each other.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/thread_pool.h"
#include "common/service/grpc/grpc_server.h"
#include "common/service/sockets/handle_socket.h"
#include "sender_daemon/on_demand/gather/gather.h"
#include "sender_daemon/on_demand/gather/owner_links.h"
#include "sender_daemon/on_demand/minibatch/minibatch_engine.h"
#include "sender_daemon/on_demand/objects/object_exchange.h"
#include "sender_daemon/on_demand/objects/object_services.h"
#include "sender_daemon/on_demand/objects/object_store.h"
#include "sender_daemon/on_demand/on_demand_service.h"
#include "sender_daemon/on_demand/train_service.h"
#include "sender_daemon/publish/publish_gate.h"
#include "sender_daemon/publish/version_sink.h"

namespace dws {

// Lifecycle: made; MakeSink, once; Start; Stop before what Start was given ends. It outlives its
// sink, and the servers. Threads: one at a time.
class OnDemand {
 public:
  struct Options {
    std::string job_id;
    TrainerRank rank;
    std::vector<std::string> peers;  // none: other senders may read weights here, and that is all
    Duration peer_timeout = limits::kTrainPeerTimeoutDefault;
    std::string host_id;
    uint64_t host_cache_bytes = 0;
    uint64_t host_accumulate_bytes = 0;
    uint64_t object_bytes = limits::kObjectBytesDefault;  // 0: ranks give each other no objects
    Gather::Options gather;                               // units aside
    RankEpoch epoch;  // of this process: above that of every earlier one
  };
  struct Parts {
    PeerTls tls = {};
    HandleSocket& handles;
    Executor& trainer_executor;
    Executor& reads;  // of gradients, for other senders
    // Runs on the trainer's executor. OK: the session is registered, and has published.
    std::function<Status(uint64_t session)> check_session;
  };

  OnDemand(Options options, ThreadPool& pool, const Clock& clock);

  // Tells the senders of other ranks what this rank publishes.
  std::unique_ptr<VersionSink> MakeSink();
  // Errors: those of OwnerLinks::Create. RESOURCE_EXHAUSTED: there is no memory for the cache.
  Status Start(const Parts& parts);
  void Stop();

  // Refuses what no Step has led to.
  PublishGate gate();
  // What this sender exchanges with those of the other ranks, after Start; null: no peers.
  ObjectExchange* exchange() { return exchange_.get(); }
  // After Start.
  std::vector<GrpcServer::NamedService> for_senders();
  std::vector<GrpcServer::NamedService> for_rank();  // none: no peers

 private:
  Status Connect(const Parts& parts);

  const Options options_;
  ThreadPool& pool_;
  const Clock& clock_;
  std::unique_ptr<MinibatchEngine> engine_;  // null: no peers
  TrainPeers* peers_ = nullptr;              // the sink
  std::unique_ptr<TrainServiceImpl> train_service_;
  std::unique_ptr<OwnerLinks> links_;
  std::unique_ptr<HostCache> cache_;
  std::unique_ptr<OnDemandService> service_;
  ObjectStore objects_;
  ObjectTraffic object_traffic_;
  std::unique_ptr<ObjectExchange> exchange_;             // null: no peers
  std::unique_ptr<PeerObjectServiceImpl> peer_objects_;  // null: no peers
  std::unique_ptr<ObjectServiceImpl> object_service_;    // null: no peers, or no objects
};

}  // namespace dws
