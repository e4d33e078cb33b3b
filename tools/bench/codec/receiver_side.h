// An engine and its receiver in this process, made of the receiver's own parts: attached memory,
// spool, staging, the commit's scatter. It does the work of the daemon, without network and lease.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/threads/thread_pool.h"
#include "common/spool/fetched_full.h"
#include "common/spool/fetched_object.h"
#include "receiver_daemon/weights/staging.h"
#include "sender_daemon/publish/full_reader.h"
#include "tools/bench/measure/workload.h"

namespace dws::bench {

// Lifecycle: created for a placement; weights begin as zeros. Threads: one.
class ReceiverSide {
 public:
  static Result<std::unique_ptr<ReceiverSide>> Create(const Placement& placement);
  // Like Create, but for an engine with this memory, of which nothing is known.
  static Result<std::unique_ptr<ReceiverSide>> CreateFor(const Placement& placement,
                                                         MappedRegion region);

  // The engine's weights in host memory, as the receiver maps them.
  MutableByteSpan weights() const {
    return std::get<HostRegion>(memory_->handed->regions[0]).mutable_bytes();
  }
  const EngineWeights& engine() const { return *engine_; }
  const std::shared_ptr<SparePages>& spare() const { return spare_; }

  // Takes a delta object as a fetch delivers it, and parses it.
  Status Take(ByteSpan object);
  // Reads the engine's memory: the state that Stage begins with.
  Status ReadLive(ThreadPool& pool);
  Status Receive(ByteSpan object, ThreadPool& pool) {
    DWS_RETURN_IF_ERROR(Take(object));
    return ReadLive(pool);
  }
  // Verifies and stages the object. Writes nothing. DATA_LOSS and others: a slice was rejected.
  Result<StagedDelta> Stage(ThreadPool& pool) const;
  // Writes the staged values, divided among threads as in a commit.
  void Commit(const StagedDelta& staged, ThreadPool& pool) const;

  // Takes full tensors, frame by frame after BeginFull, and writes them as a repair does.
  void BeginFull();
  Status ReceiveFull(const FullFrame& frame);
  // Takes all of them at once.
  void TakeFull(FetchedFull full);
  Status WriteFull(ThreadPool& pool) const;

 private:
  ReceiverSide() = default;

  AttachedMemoryPtr memory_;
  EngineWeightsPtr engine_;
  std::optional<Spool> spool_;
  const std::shared_ptr<SparePages> spare_ = std::make_shared<SparePages>();
  FetchedObject object_;
  std::vector<SliceState> live_;
};

// The whole path of an object: an engine at `before` receives it. DATA_LOSS: afterwards it is not
// at `after`.
Status CheckObject(const Placement& placement, ByteSpan object, ByteSpan before, ByteSpan after,
                   ThreadPool& pool);

}  // namespace dws::bench
