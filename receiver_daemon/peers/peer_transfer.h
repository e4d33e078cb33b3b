// One FetchFull of another receiver: full tensors of the version that the engine has.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/threads/executor.h"
#include "common/model/block_range.h"
#include "common/model/weight_version.h"
#include "common/service/grpc/paced_write.h"
#include "receiver_daemon/weights/served_weights.h"

namespace dws {

inline constexpr size_t kPeerTransfersMax = 32;  // at a time

// What is served, since the start.
struct PeerCounters {
  std::atomic<uint64_t> served_bytes{0};
  std::atomic<uint32_t> transfers{0};  // that are open now
  std::atomic<uint64_t> other_version{0};
  std::atomic<uint64_t> too_many{0};
};

// Owns itself until OnDone. Each frame is copied on the executor, and is the only one of the
// transfer in memory besides what gRPC has not sent. Threads: those of gRPC and the executor's, one
// at a time.
class PeerTransfer final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  struct Order {
    ServedWeights::Found found;
    TrainerRank rank;
    std::vector<BlockRange> ranges;  // ascending, inside the layout
  };

  // All outlive it. Counts itself as open.
  PeerTransfer(ServedWeights& weights, Executor& executor, EgressLimit& egress,
               PeerCounters& counters);
  ~PeerTransfer() override { --counters_.transfers; }

  // Instead of Finish: sends the blocks that are held here.
  void Send(Order order);
  // Instead of Send.
  void Refuse(const Status& reason);

  void OnWriteDone(bool ok) override;
  void OnCancel() override { paced_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  // The next frame, or none.
  std::optional<BlockRange> Take();
  void Post();
  void Next();

  ServedWeights& weights_;
  Executor& executor_;
  PacedWrite paced_;
  PeerCounters& counters_;
  Order order_;
  size_t next_range_ = 0;
  uint32_t next_block_ = 0;  // in that range
  grpc::ByteBuffer message_;
};

}  // namespace dws
