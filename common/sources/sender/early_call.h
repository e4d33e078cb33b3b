// One call that fetches a delta while its sender captures it. A separate thread reads the stream,
// so that the link is used while the caller stages earlier frames.
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
#include "common/sources/sender/link_speed.h"
#include "common/sources/source.h"
#include "common/spool/spool.h"
#include "common/spool/spooled_frame.h"
#include "proto/sync.grpc.pb.h"

namespace dws {

// Lifecycle: Run, once. Threads: one.
class EarlyCall {
 public:
  // `check_peer` checks the peer before its first answer is used. `spool`: the options for frames
  // that wait to be taken.
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
  // Blocks until there is room for more frames. Returns false if the caller has stopped taking
  // them.
  bool AwaitRoom();
  // Returns whether the waiting frames are enough for a group.
  bool IsGroup() const REQUIRES(mutex_);
  // Waits for the next group, or for the last frames; nullopt: the stream has ended and no frames
  // are left. CANCELLED: the version is no longer wanted. UNAVAILABLE: nothing has arrived for
  // limits::kRpcDeadline.
  Result<std::optional<Batch>> Next();
  Status TakeAll(const FrameTaker& take);
  void Measure(const v1::FetchChunk& chunk);

  const RankLayout& layout_;
  const SliceSelection& slices_;
  const Spool::Options options_;
  LinkSpeed& speed_;
  const std::function<Status()> check_peer_;

  // Used by the reading thread, and after its end by Run.
  std::map<RankSlice, uint32_t> next_block_;  // by slice, if frames of it have arrived
  std::vector<std::byte> head_;
  uint64_t head_bytes_ = 0;      // of the whole head; 0: none has arrived
  uint64_t measured_bytes_ = 0;  // that the link brought without a break
  Duration measured_ = {};       // in which they came
  TimePoint last_ = {};          // when the last chunk arrived; zero: there was a break since

  Mutex mutex_;
  CondVar changed_;
  std::optional<Batch> waiting_ GUARDED_BY(mutex_);
  uint64_t taken_bytes_ GUARDED_BY(mutex_) = 0;
  TimePoint arrived_at_ GUARDED_BY(mutex_);  // the last byte
  bool ended_ GUARDED_BY(mutex_) = false;    // the stream has ended
  bool stopped_ GUARDED_BY(mutex_) = false;  // the caller takes no more frames
  Status read_ GUARDED_BY(mutex_);           // what was wrong with the stream
};

}  // namespace dws
