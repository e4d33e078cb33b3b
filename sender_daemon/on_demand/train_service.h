// The service for the senders of the other trainer ranks: tells them what this rank publishes, and
// serves the gradients that it pushes. Weights are read through SyncService, as receivers read
// them.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "common/base/threads/executor.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/model/weight_version.h"
#include "common/service/security/access.h"
#include "common/service/sockets/handle_socket.h"
#include "common/transport/same_host/host_id.h"
#include "proto/train.grpc.pb.h"
#include "sender_daemon/on_demand/gather/host_cache.h"
#include "sender_daemon/on_demand/minibatch/minibatch_engine.h"
#include "sender_daemon/publish/version_sink.h"

namespace dws {

class TrainStream;

// The senders that are connected. Lifecycle: Stop ends their streams. Threads: safe from any.
class TrainPeers final : public VersionSink {
 public:
  // `listener` hears what they say of minibatches, and outlives it; null: nobody does.
  TrainPeers(std::string job_id, TrainerRank rank, TrainListener* listener = nullptr,
             OwnerHost host = {.id = HostId()});
  ~TrainPeers() override;

  std::string_view name() const override { return "train"; }
  void Welcome(const RankStatePtr& state) override;
  void Refine(const RankStatePtr& state) override { Welcome(state); }
  void Offer(const RankStatePtr& state) override;
  void Disconnect() override { Stop(); }
  void Stop() override;
  void FillStatus(v1::SenderStatus& status) const override;
  // Calls `fill` from then on for a sender that trains on demand; null: no longer.
  void SetStatus(std::function<void(v1::OnDemandStatus& status)> fill);

  const std::string& job_id() const { return job_id_; }
  TrainerRank rank() const { return rank_; }
  // Where this sender is.
  const OwnerHost& host() const { return host_; }
  // What this rank publishes; null: no trainer has registered.
  RankStatePtr state() const;
  // To the sender of this rank. Drops the message if that is not connected.
  void Send(TrainerRank rank, v1::TrainMessage message);

 private:
  friend class TrainStream;
  // RESOURCE_EXHAUSTED: more than limits::kTrainRanksMax streams. UNAVAILABLE: stopped.
  Status Add(TrainerRank rank, const std::shared_ptr<TrainStream>& stream);
  void Remove(TrainerRank rank, const std::shared_ptr<TrainStream>& stream);
  // Not called under the lock: streams write, and ask for the state.
  std::set<std::shared_ptr<TrainStream>> Streams() const;

  const std::string job_id_;
  const TrainerRank rank_;
  TrainListener* const listener_;
  const OwnerHost host_;
  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::function<void(v1::OnDemandStatus&)> fill_ GUARDED_BY(mutex_);
  RankStatePtr state_ GUARDED_BY(mutex_);
  std::set<std::shared_ptr<TrainStream>> streams_ GUARDED_BY(mutex_);
  std::map<TrainerRank, std::shared_ptr<TrainStream>> newest_ GUARDED_BY(mutex_);
  LoopThread keepalives_;
};

class TrainServiceImpl final : public v1::TrainService::CallbackService {
 public:
  // All must outlive the service and its calls.
  struct Parts {
    TrainPeers& peers;
    MinibatchEngine* engine = nullptr;  // null: this sender does not train on demand
    HostCache* cache = nullptr;         // null: the same
    HandleSocket* handles = nullptr;
    Executor* executor = nullptr;  // reads gradients
  };
  explicit TrainServiceImpl(const Parts& parts) : parts_(parts) {}

  grpc::ServerBidiReactor<v1::TrainUp, v1::TrainDown>* Train(
      grpc::CallbackServerContext* context) override;
  grpc::ServerWriteReactor<v1::PieceChunk>* FetchPiece(
      grpc::CallbackServerContext* context, const v1::FetchPieceRequest* request) override;
  grpc::ServerUnaryReactor* OpenOutbox(grpc::CallbackServerContext* context,
                                       const v1::OpenOutboxRequest* request,
                                       v1::OpenOutboxReply* reply) override;
  grpc::ServerUnaryReactor* OpenHostCopy(grpc::CallbackServerContext* context,
                                         const v1::OpenHostCopyRequest* request,
                                         v1::OpenHostCopyReply* reply) override;

 private:
  const Parts parts_;
};

}  // namespace dws
