// One FetchFull: full tensors at one version, sent from the snapshot's own memory where that still
// is the version, and from an exact copy where it has moved on.
#pragma once

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/server_callback.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/threads/executor.h"
#include "common/service/grpc/paced_write.h"
#include "proto/sync.pb.h"
#include "sender_daemon/metrics/sender_metrics.h"
#include "sender_daemon/publish/full_reader.h"
#include "sender_daemon/publish/rank_state.h"
#include "sender_daemon/serve/transfers/capture_wait.h"

namespace dws {

// What a transfer ends with for which there is no room.
Status ServesTooMany();

// What a FetchFull asks for. The ranges are ascending and inside the layout.
struct FullOrder {
  RankStatePtr state;
  WeightVersion version;
  std::vector<BlockRange> ranges;
  bool early = false;  // its capture may be open
};

// Owns itself until OnDone. A piece's bytes are lent to gRPC, which reads them when it sends them;
// a capture does not wait for that. When gRPC gives them back, the stamps of their blocks tell
// whether they had changed meanwhile: then the piece is sent again, from a copy. Threads: those of
// gRPC and the executor's, one at a time, except for what Lent guards.
class FullStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  // Copies are made on `executor`. `transfers` counts the streams that live.
  FullStream(Executor& executor, SenderMetrics& metrics, EgressLimit& egress,
             std::atomic<size_t>& transfers);
  ~FullStream() override;

  // `progress` is called when a piece was sent, and with true when all were. Before Send.
  void OnProgress(std::function<void(bool done)> progress) { progress_ = std::move(progress); }

  // Once, instead of Finish.
  void Send(FullOrder order);

  void OnWriteDone(bool ok) override;
  void OnCancel() override;
  void OnDone() override;

 private:
  class Lent;
  // A position in the order.
  struct Place {
    size_t range = 0;
    uint32_t offset = 0;  // in blocks, in that range
  };
  struct LentPiece;

  // Writes the next message, or waits for lent pieces, or finishes.
  void Next();
  // What became of the next piece that is as it should be; the others are copied later.
  enum class Lending : uint8_t {
    kWritten,
    kNone,     // there is none
    kAwaited,  // the capture of an early version has yet to come to it, or the stream is finished
  };
  Lending LendNext();
  // The next piece of the order, and its place.
  struct Piece {
    BlockRange range;
    Place place;
  };
  std::optional<Piece> TakePiece();
  // The next piece of an early version, which is still being captured.
  std::optional<Piece> TakeEarly();
  // Writes the piece; false: it has changed.
  bool Lend(const Piece& piece);
  // Called for an early version when nothing can be lent now. Returns whether more will come; if
  // not, the stream is finished.
  bool AwaitCapture();
  void CopyNext();
  void WriteCopied();
  void Write(const BlockRange& range, const grpc::Slice& content);
  void OnExecutor(void (FullStream::*step)());
  // All is sent.
  void FinishWhole();

  Executor& executor_;
  SenderMetrics& metrics_;
  PacedWrite paced_;
  std::atomic<size_t>& transfers_;
  std::function<void(bool done)> progress_ = [](bool) {};
  FullOrder order_;
  TimePoint began_ = {};
  uint64_t sent_bytes_ = 0;
  std::unique_ptr<FullReader> reader_;  // reads the bytes that are copied
  size_t next_range_ = 0;               // of the order: to be lent
  uint32_t next_offset_ = 0;            // in blocks, in that range
  std::vector<BlockRange> to_copy_;
  std::deque<Piece> early_;  // for an early version: the pieces that are not lent yet
  CaptureWait wait_;         // waits for the capture of any of them
  std::atomic<bool> cancelled_{false};
  bool copying_ = false;          // the reader has not come to its end
  std::deque<FullFrame> copied_;  // of the reader's last read; all are sent before the next
  std::shared_ptr<Lent> lent_;
  grpc::ByteBuffer message_;
};

}  // namespace dws
