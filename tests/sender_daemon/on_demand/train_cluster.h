// Several ranks with real senders' parts for minibatches in this process, which talk over loopback.
// Ranks are objects that do what a rank's process does with its memory.
#pragma once

#include <grpcpp/grpcpp.h>

#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/threads/executor.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/gradients/outbox.h"
#include "sender_daemon/on_demand/gather/owner_links.h"
#include "sender_daemon/on_demand/minibatch/join_order.h"
#include "sender_daemon/on_demand/minibatch/minibatch_engine.h"
#include "sender_daemon/on_demand/train_service.h"
#include "tests/fakes/temp_folder.h"

namespace dws {

inline constexpr StreamId kJobStream{.incarnation = 1, .id_hi = 2, .id_lo = 3};

struct ClusterOptions {
  uint32_t ranks = 2;
  // By rank, by unit: the elements of the shard.
  std::vector<std::vector<uint64_t>> shards;
  bool exact = false;
  uint32_t pushes = 2;        // that an outbox has room for
  DType dtype = DType::kF32;  // of pieces
  bool same_host = true;      // else each sender says that it is on a host of its own
  uint32_t on_host = 1;       // unless same_host: so many ranks are on each host
  // By rank: memory for sums of its host. Empty: none.
  std::vector<uint64_t> accumulate_bytes = {};
  Duration peer_timeout = std::chrono::seconds(20);
};

// The sender of one rank.
class TrainSender {
 public:
  // `port`: 0 picks one. Connect follows.
  TrainSender(const ClusterOptions& options, TrainerRank rank, int port, uint64_t epoch);
  ~TrainSender();

  void Connect(const std::vector<std::string>& addresses);
  v1::OnDemandStatus Status() const;
  MinibatchEngine& engine() { return *engine_; }
  int port() const { return port_; }

 private:
  const ClusterOptions options_;
  const TrainerRank rank_;
  RealClock clock_;
  ThreadPool pool_{1};
  Executor reads_{1, 64};
  TempFolder sockets_;
  std::unique_ptr<HandleSocket> handles_;
  std::unique_ptr<MinibatchEngine> engine_;
  std::unique_ptr<TrainPeers> peers_;
  std::unique_ptr<OwnerLinks> links_;
  std::unique_ptr<TrainServiceImpl> service_;
  std::unique_ptr<grpc::Server> server_;
  int port_ = 0;
};

// The process of one rank: its memory, and what it does with it.
class TrainRank {
 public:
  TrainRank(const ClusterOptions& options, TrainerRank rank);

  JoinOrder Order() const;
  // Joins as the next member of the rank. `units`: its own idea of the units.
  Status Join(MinibatchEngine& engine, uint64_t version,
              const std::function<void(JoinOrder&)>& change = nullptr);
  void Leave();
  v1::MinibatchView View() const;
  // Waits until the view is as wanted; returns it.
  v1::MinibatchView Await(const std::function<bool(const v1::MinibatchView&)>& wanted) const;
  v1::MinibatchView AwaitOpen(uint64_t minibatch) const;
  v1::MinibatchView AwaitStep() const;
  // Waits for the decision of the attempt that AwaitOpen has found. False: it is abandoned.
  bool AwaitEnd() const;
  // Pushes a unit's gradients, by owner; waits for room. False: there was none in `patience`.
  bool Push(uint32_t unit, const std::vector<std::vector<float>>& by_owner,
            Duration patience = std::chrono::seconds(20));
  // Puts a slot's description there as it is.
  void Fill(const OutboxPiece& piece);
  Status Finish(double weight);
  Status Abandon(const std::string& reason);
  // The gradient of a unit's shard, after Step.
  std::vector<float> Gradient(uint32_t unit) const;
  Status Publish(uint64_t version);
  Status Skip();
  uint64_t pushes() const { return number_; }

 private:
  const ClusterOptions options_;
  const TrainerRank rank_;
  CreatedRegion arena_;
  CreatedRegion gradients_;
  OutboxHandles handles_;
  std::unique_ptr<OutboxWriter> outbox_;
  std::vector<uint64_t> offsets_;  // of the units' gradients
  MinibatchEngine* engine_ = nullptr;
  uint64_t member_ = 0;
  mutable AttemptId attempt_;
  mutable uint64_t number_ = 0;  // of the last push in the attempt
};

// All of them. Ranks join at version 1 by themselves.
class TrainCluster {
 public:
  explicit TrainCluster(ClusterOptions options);

  TrainSender& sender(uint32_t rank) { return *senders_[rank]; }
  TrainRank& rank(uint32_t rank) { return *ranks_[rank]; }
  void JoinAll(uint64_t version = 1);
  // The sender is killed, and a new process answers at its address.
  void RestartSender(uint32_t rank);
  void KillSender(uint32_t rank) { senders_[rank].reset(); }
  // The rank's process is replaced: it has new memory, and has not joined.
  void ReplaceRank(uint32_t rank);
  const ClusterOptions& options() const { return options_; }

 private:
  const ClusterOptions options_;
  std::vector<std::string> addresses_;
  std::vector<int> ports_;
  uint64_t epochs_ = 0;
  std::vector<std::unique_ptr<TrainRank>> ranks_;
  std::vector<std::unique_ptr<TrainSender>> senders_;
};

}  // namespace dws
