#include "sender_daemon/serve/transfers/full_stream.h"

#include <algorithm>
#include <chrono>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/threads/mutex.h"
#include "common/model/full_cost.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/full_frame_message.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {
namespace {

// A stream has to send so many bytes before its time tells how fast the link is.
constexpr uint64_t kSpeedBytesMin = uint64_t{4} << 20;

}  // namespace

Status ServesTooMany() {
  return ResourceExhaustedError("the sender serves too many transfers; try again");
}

// What gRPC holds of the snapshot's memory, counted. Outlives the stream if need be. Threads: safe
// from any.
class FullStream::Lent {
 public:
  enum class State : uint8_t { kNothing, kChanged, kAwaited };

  // Adds a piece that is lent now; returns its number.
  uint64_t Add(Place place) {
    MutexLock lock(mutex_);
    ++count_;
    needed_.emplace(++last_, place);
    return last_;
  }
  // Adds a piece that is copied later.
  void Skip(Place place) {
    MutexLock lock(mutex_);
    needed_.emplace(++last_, place);
  }
  // The first piece that may have to be read once more; `next` if all before that is sent.
  Place FirstNeeded(Place next) {
    MutexLock lock(mutex_);
    return needed_.empty() ? next : needed_.begin()->second;
  }
  // gRPC has given a piece back; it has to be sent again if its blocks have changed.
  void Back(const LentPiece& piece);
  std::vector<BlockRange> TakeChanged() {
    MutexLock lock(mutex_);
    return std::exchange(changed_, {});
  }
  // kAwaited: no returned piece has changed, and pieces are still lent; `stream` is continued
  // later. It lives until then, because it does not finish before.
  State Await(FullStream* stream) {
    MutexLock lock(mutex_);
    if (!changed_.empty()) return State::kChanged;
    if (count_ == 0) return State::kNothing;
    waiting_ = stream;
    return State::kAwaited;
  }

 private:
  Mutex mutex_;
  size_t count_ GUARDED_BY(mutex_) = 0;
  uint64_t last_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Place> needed_
      GUARDED_BY(mutex_);  // by number: pieces that have not been sent unchanged
  FullStream* waiting_ GUARDED_BY(mutex_) = nullptr;
  std::vector<BlockRange> changed_ GUARDED_BY(mutex_);
};

// The lent piece of one message: keeps the memory until gRPC has released it.
struct FullStream::LentPiece {
  std::shared_ptr<Lent> lent;
  std::shared_ptr<Snapshot> snapshot;
  WeightVersion version;
  BlockRange range;
  uint64_t number = 0;  // the number that Lent::Add returned

  bool current() const {
    return AllAt(snapshot->Stamps(range.slice, range.first_block, range.block_count), version);
  }
};

void FullStream::Lent::Back(const LentPiece& piece) {
  FullStream* stream = nullptr;
  {
    MutexLock lock(mutex_);
    DWS_CHECK(count_ > 0);
    --count_;
    if (piece.current()) {
      needed_.erase(piece.number);
    } else {
      changed_.push_back(piece.range);
    }
    if (count_ == 0 || !changed_.empty()) stream = std::exchange(waiting_, nullptr);
  }
  // The stream continues on the executor: this thread is gRPC's, inside its transport.
  if (stream != nullptr) stream->OnExecutor(&FullStream::Next);
}

FullStream::FullStream(Executor& executor, SenderMetrics& metrics, EgressLimit& egress,
                       std::atomic<size_t>& transfers)
    : executor_(executor),
      metrics_(metrics),
      paced_(egress),
      transfers_(transfers),
      lent_(std::make_shared<Lent>()) {}

FullStream::~FullStream() { --transfers_; }

void FullStream::OnDone() { delete this; }

void FullStream::Send(FullOrder order) {
  order_ = std::move(order);
  began_ = std::chrono::steady_clock::now();
  reader_ = std::make_unique<FullReader>(order_.state->snapshot, order_.state->log, order_.version,
                                         order_.ranges);
  if (order_.early) {
    while (const std::optional<Piece> piece = TakePiece()) early_.push_back(*piece);
  }
  Next();
}

void FullStream::OnCancel() {
  cancelled_ = true;
  paced_.Cancel();
}

void FullStream::OnWriteDone(bool ok) {
  message_.Clear();  // lets go of the piece
  if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the receiver hung up"});
  progress_(false);
  DWS_KILLPOINT("sender.full.after_frame");
  Next();
}

void FullStream::OnExecutor(void (FullStream::*step)()) {
  if (!executor_.Post([this, step] { (this->*step)(); })) Finish(ToGrpc(ServesTooMany()));
}

void FullStream::Next() {
  if (!copied_.empty()) return WriteCopied();
  if (LendNext() != Lending::kNone) return;
  while (true) {
    const std::vector<BlockRange> changed = lent_->TakeChanged();
    to_copy_.insert(to_copy_.end(), changed.begin(), changed.end());
    // Copying waits for captures.
    if (copying_ || !to_copy_.empty()) return OnExecutor(&FullStream::CopyNext);
    switch (lent_->Await(this)) {
      case Lent::State::kAwaited:
        return;
      case Lent::State::kNothing:
        return FinishWhole();
      case Lent::State::kChanged:
        break;
    }
  }
}

// While versions are full nobody asks for deltas, and only those would show that the link has
// become slow.
void FullStream::FinishWhole() {
  const Duration took = std::chrono::steady_clock::now() - began_;
  if (!order_.early && sent_bytes_ >= kSpeedBytesMin &&
      static_cast<double>(sent_bytes_) < kDirectBytesPerSecond * ToSeconds(took)) {
    order_.state->log->Note(DeltaProfile::kFast);
  }
  progress_(true);
  Finish(grpc::Status::OK);
}

std::optional<FullStream::Piece> FullStream::TakePiece() {
  const RankLayout& layout = order_.state->layout();
  while (next_range_ < order_.ranges.size()) {
    const BlockRange& asked = order_.ranges[next_range_];
    if (next_offset_ == asked.block_count) {
      ++next_range_;
      next_offset_ = 0;
      continue;
    }
    const uint32_t blocks_max = BlocksIn(limits::kFrameBytesMax, layout.slice(asked.slice).dtype);
    const Place place{.range = next_range_, .offset = next_offset_};
    const uint32_t count = std::min(blocks_max, asked.block_count - next_offset_);
    next_offset_ += count;
    return Piece{.range = {.slice = asked.slice,
                           .first_block = asked.first_block + place.offset,
                           .block_count = count},
                 .place = place};
  }
  return std::nullopt;
}

// The trainer hands tensors over in its own order.
std::optional<FullStream::Piece> FullStream::TakeEarly() {
  const Snapshot& snapshot = *order_.state->snapshot;
  const VersionInFlight::Stage stage = snapshot.in_flight().StageOf(order_.version);
  if (stage == VersionInFlight::Stage::kNeither) return std::nullopt;
  const auto there = std::find_if(early_.begin(), early_.end(), [&](const Piece& piece) {
    const BlockRange& range = piece.range;
    return stage == VersionInFlight::Stage::kCaptured ||
           AllBy(snapshot.Stamps(range.slice, range.first_block, range.block_count),
                 order_.version);
  });
  if (there == early_.end()) return std::nullopt;
  const Piece piece = *there;
  early_.erase(there);
  wait_.End();
  return piece;
}

bool FullStream::AwaitCapture() {
  const uint64_t version = order_.version.value();
  if (order_.state->snapshot->in_flight().StageOf(order_.version) ==
      VersionInFlight::Stage::kNeither) {
    Finish(ToGrpc(AbortedError("the capture of version {} was given up", version)));
    return true;
  }
  if (early_.empty()) return false;
  if (!cancelled_ && wait_.Goes()) {
    paced_.After(wait_.Poll(), [this] { OnExecutor(&FullStream::Next); });
  } else {
    Finish(ToGrpc(AbortedError("the capture of version {} has stalled", version)));
  }
  return true;
}

FullStream::Lending FullStream::LendNext() {
  reader_->Hold();
  while (const std::optional<Piece> piece = order_.early ? TakeEarly() : TakePiece()) {
    if (Lend(*piece)) return Lending::kWritten;
    lent_->Skip(piece->place);
    to_copy_.push_back(piece->range);
  }
  return order_.early && AwaitCapture() ? Lending::kAwaited : Lending::kNone;
}

bool FullStream::Lend(const Piece& piece) {
  const RankLayout& layout = order_.state->layout();
  const BlockRange& range = piece.range;
  auto lent = std::make_unique<LentPiece>(LentPiece{.lent = lent_,
                                                    .snapshot = order_.state->snapshot,
                                                    .version = order_.version,
                                                    .range = range});
  if (!lent->current()) return false;
  const MutableByteSpan content = order_.state->snapshot->SliceBytes(range.slice)
                                      .subspan(FirstByte(layout, range), SizeBytes(layout, range));
  lent->number = lent_->Add(piece.place);
  if (!order_.early) {  // otherwise they are not lent in their order
    const Place needed = lent_->FirstNeeded(piece.place);
    reader_->Passed(needed.range, needed.offset);
  }
  const auto give_back = [](void* bytes) {
    const std::unique_ptr<LentPiece> back(static_cast<LentPiece*>(bytes));
    back->lent->Back(*back);
  };
  metrics_.OnServed(ServedKind::kFull, content.size());
  Write(range, grpc::Slice(content.data(), content.size(), give_back, lent.release()));
  return true;
}

void FullStream::CopyNext() {
  if (!std::exchange(copying_, true)) reader_->Only(std::exchange(to_copy_, {}));
  auto frames = reader_->Next(limits::kTick);
  // A capture may stay open for long; the blocks that are kept for this reader are read after it.
  if (absl::IsDeadlineExceeded(frames.status()) && !cancelled_) {
    progress_(false);  // the reader cannot help it
    return OnExecutor(&FullStream::CopyNext);
  }
  if (!frames.ok()) return Finish(ToGrpc(frames.status()));
  copying_ = !frames->empty();
  for (FullFrame& frame : *frames) copied_.push_back(std::move(frame));
  Next();
}

void FullStream::WriteCopied() {
  const FullFrame frame = copied_.front();
  copied_.pop_front();
  // The reader reuses its memory as soon as this is written, gRPC perhaps not.
  metrics_.OnServed(ServedKind::kFullCopied, frame.content.size());
  Write({.slice = frame.slice,
         .first_block = frame.entry.first_block,
         .block_count = frame.entry.block_count},
        grpc::Slice(frame.content.data(), frame.content.size()));
}

void FullStream::Write(const BlockRange& range, const grpc::Slice& content) {
  const uint64_t bytes = content.size();
  sent_bytes_ += bytes;
  v1::FullFrame head;
  head.set_rank_slice(range.slice.value());
  *head.mutable_entry() = ToProto(FrameEntry{
      .first_block = range.first_block, .block_count = range.block_count, .size_bytes = bytes});
  message_ = FullFrameMessage(head, content);
  paced_.At(bytes, [this] { StartWrite(&message_); });
}

}  // namespace dws
