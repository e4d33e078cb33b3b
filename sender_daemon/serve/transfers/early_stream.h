// One Fetch of a delta that may still be being captured: sends the frames of its slices as they
// become complete, then the frames that the receiver lacks and the start of the object, from the
// log.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>
#include <grpcpp/support/slice.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/threads/executor.h"
#include "common/delta/objects/object_part.h"
#include "common/model/delta_manifest.h"
#include "common/model/delta_profile.h"
#include "common/service/grpc/paced_write.h"
#include "proto/sync.pb.h"
#include "sender_daemon/capture/open_delta.h"
#include "sender_daemon/metrics/sender_metrics.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/serve/transfers/capture_wait.h"

namespace dws {

// What a FetchRequest with `early` asks for.
struct EarlyOrder {
  RankStatePtr state;
  WeightVersion version;
  DeltaProfile profile = DeltaProfile::kFast;
  SliceSelection only;
  std::shared_ptr<OpenDelta> open;  // of the version; null: it is retained
};

// Owns itself until OnDone. The bytes that it sends are those of RetainedVersion::object_of, each
// frame once. Ends with ABORTED if the capture was given up, does not go on, or if the version is
// no longer retained. Threads: those of gRPC and the executor's, one at a time, except OnCancel.
class EarlyStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // What takes long runs on `executor`.
  EarlyStream(Executor& executor, SenderMetrics& metrics, EgressLimit& egress)
      : executor_(executor), metrics_(metrics), paced_(egress) {}

  // Once, instead of Finish.
  void Send(EarlyOrder order);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  // Writes the next message, or waits for it, or finishes.
  void Next();
  // The next frames of the open delta; false: there are none now.
  bool WriteFramed();
  // Returns whether sending_ has a frame that is not sent. If it is done with its slice, it first
  // takes the next slice.
  bool HasFramed();
  // Call it when the version is in the log, or was.
  void OpenRetained();
  // Writes frames that were not sent yet, or, if all were, the next part of the object's start, or
  // finishes.
  void WriteRetained();
  // Returns the next slice that has frames that are not sent, and sets the first of them; null:
  // there is none.
  const SliceDelta* NextRetained();
  // Returns whether the chunk has room for the frame; an empty one has.
  bool Fits(const FrameEntry& entry) const;
  // `owner` keeps the frame's bytes.
  void AddFrame(const SliceDelta& slice, const FrameEntry& entry, ByteSpan frame,
                std::shared_ptr<const void> owner);
  void AddData(ByteSpan bytes, std::shared_ptr<const void> owner);
  void BeginChunk();
  void WriteChunk();

  Executor& executor_;
  SenderMetrics& metrics_;
  PacedWrite paced_;
  EarlyOrder order_;
  std::vector<bool> sent_;  // by rank slice
  CaptureWait wait_;
  std::atomic<bool> cancelled_{false};
  size_t next_framed_ = 0;                      // of the open delta
  std::shared_ptr<const SealedSlice> sending_;  // null: none of its slices
  size_t next_frame_ = 0;                       // of the slice that is sent now
  RetainedVersionPtr retained_;                 // null: not yet
  ByteSpan object_;
  ObjectHeader header_;
  DeltaManifest parsed_;  // manifest of an object whose manifest is not retained
  const DeltaManifest* manifest_ = nullptr;
  size_t next_slice_ = 0;  // of the manifest
  uint64_t start_sent_ = 0;
  v1::FetchChunk chunk_;           // without its data
  std::vector<grpc::Slice> data_;  // of the chunk
  uint64_t data_bytes_ = 0;
  grpc::ByteBuffer message_;
};

}  // namespace dws
