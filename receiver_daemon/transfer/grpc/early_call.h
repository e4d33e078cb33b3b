// One call that fetches a delta while its sender captures it. What arrives is read by a thread of
// its own, so that the link is used while the caller stages what came before.
#pragma once

#include <grpcpp/client_context.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/delta/objects/object_part.h"
#include "common/model/layout.h"
#include "common/sources/source.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"
#include "proto/sync.grpc.pb.h"
#include "receiver_daemon/transfer/grpc/link_speed.h"

namespace dws {

// Lifecycle: Run, once. Threads: one.
class EarlyCall {
 public:
  // `check_peer` checks the peer before its first answer is used. `spool`: of what waits to be
  // taken.
  EarlyCall(const RankLayout& layout, const SliceSelection& slices, const Spool::Options& spool,
            LinkSpeed& speed, std::function<Status()> check_peer)
      : layout_(layout),
        slices_(slices),
        options_(spool),
        speed_(speed),
        check_peer_(std::move(check_peer)) {}

  // Errors and result as Source::ReadDeltaCapture's.
  Result<std::vector<std::byte>> Run(v1::SyncService::Stub& stub, grpc::ClientContext& context,
                                     const v1::FetchRequest& request, const FrameTaker& take);

 private:
  // Frames that arrived and are not taken yet.
  struct Batch {
    explicit Batch(const Spool::Options& options) : spool(options) {}
    Spool spool;
    std::vector<SpooledFrame> frames;
  };
  // On the reading thread, until the stream ends or something is wrong with it.
  void Read(grpc::ClientReader<v1::FetchChunk>& reader);
  Status OnChunk(const v1::FetchChunk& chunk);
  Status AddFrame(const v1::EarlyFrame& message, ByteSpan bytes);
  Status AddHead(const v1::FetchChunk& chunk);
  // Waits while more is not taken than may wait. False: nobody takes any more.
  bool AwaitRoom();
  // Whether what waits is worth a group.
  bool IsGroup() const REQUIRES(mutex_);
  // That, or the last; nullopt: nothing, and the stream has ended. CANCELLED: nothing is wanted any
  // more. UNAVAILABLE: nothing arrives for limits::kRpcDeadline.
  Result<std::optional<Batch>> Next();
  Status TakeAll(const FrameTaker& take);
  void Measure(const v1::FetchChunk& chunk);

  const RankLayout& layout_;
  const SliceSelection& slices_;
  const Spool::Options options_;
  LinkSpeed& speed_;
  const std::function<Status()> check_peer_;

  // Of the reading thread.
  std::map<RankSlice, uint32_t> next_block_;  // of slices whose frames have come
  std::vector<std::byte> head_;
  uint64_t head_bytes_ = 0;      // of all of it; 0: none has come
  uint64_t measured_bytes_ = 0;  // that the link brought without a break
  Duration measured_ = {};       // in which they came
  TimePoint last_ = {};          // chunk; zero: there was a break since

  Mutex mutex_;
  CondVar changed_;
  std::optional<Batch> waiting_ GUARDED_BY(mutex_);
  uint64_t taken_bytes_ GUARDED_BY(mutex_) = 0;
  TimePoint arrived_at_ GUARDED_BY(mutex_);  // the last byte
  bool ended_ GUARDED_BY(mutex_) = false;    // the stream
  bool stopped_ GUARDED_BY(mutex_) = false;  // taking
  Status read_ GUARDED_BY(mutex_);           // what was wrong with what came
};

}  // namespace dws
