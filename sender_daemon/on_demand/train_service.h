// The service for the senders of the other trainer ranks: tells them what this rank publishes. It
// serves no bytes: they are read through SyncService, as receivers read them.
#pragma once

#include <memory>
#include <set>
#include <string>
#include <string_view>

#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/model/weight_version.h"
#include "common/service/security/access.h"
#include "proto/train.grpc.pb.h"
#include "sender_daemon/publish/version_sink.h"

namespace dws {

class TrainStream;

// The senders that are connected. Lifecycle: Stop ends their streams. Threads: safe from any.
class TrainPeers final : public VersionSink {
 public:
  TrainPeers(std::string job_id, TrainerRank rank);
  ~TrainPeers() override;

  std::string_view name() const override { return "train"; }
  void Welcome(const RankStatePtr& state) override;
  void Refine(const RankStatePtr& state) override { Welcome(state); }
  void Offer(const RankStatePtr& state) override;
  void Disconnect() override { Stop(); }
  void Stop() override;
  // They have no part of the status yet.
  void FillStatus(v1::SenderStatus& /*status*/) const override {}

  const std::string& job_id() const { return job_id_; }
  TrainerRank rank() const { return rank_; }
  // What this rank publishes; null: no trainer has registered.
  RankStatePtr state() const;

 private:
  friend class TrainStream;
  // RESOURCE_EXHAUSTED: more than limits::kTrainRanksMax streams. UNAVAILABLE: stopped.
  Status Add(const std::shared_ptr<TrainStream>& stream);
  void Remove(const std::shared_ptr<TrainStream>& stream);
  // Not called under the lock: streams write, and ask for the state.
  std::set<std::shared_ptr<TrainStream>> Streams() const;

  const std::string job_id_;
  const TrainerRank rank_;
  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  RankStatePtr state_ GUARDED_BY(mutex_);
  std::set<std::shared_ptr<TrainStream>> streams_ GUARDED_BY(mutex_);
  LoopThread keepalives_;
};

// `peers` must outlive the service and its calls.
class TrainServiceImpl final : public v1::TrainService::CallbackService {
 public:
  explicit TrainServiceImpl(TrainPeers& peers) : peers_(peers) {}

  grpc::ServerBidiReactor<v1::TrainUp, v1::TrainDown>* Train(
      grpc::CallbackServerContext* context) override;

 private:
  TrainPeers& peers_;
};

}  // namespace dws
