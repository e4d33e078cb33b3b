#include "common/sources/sender/early_call.h"

#include <algorithm>
#include <chrono>
#include <thread>
#include <utility>

#include "common/delta/objects/object.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {
namespace {

// A group of frames that is staged together has at least so many bytes, and at least one part in
// kGroupPart of all bytes before it, so that there are few groups.
constexpr uint64_t kGroupBytesMin = uint64_t{256} << 10;
constexpr uint64_t kGroupPart = 8;
// Once so many bytes wait, reading stops and the sender waits. With the chunk that exceeds this
// limit they are at most kEarlyWaitingBytesMax.
constexpr uint64_t kWaitingBytesMax = kEarlyWaitingBytesMax - limits::kFetchChunkBytesMax;
// How often Next asks whether the version is still wanted.
constexpr Duration kWantedPoll = std::chrono::milliseconds(20);

}  // namespace

Result<std::vector<std::byte>> EarlyCall::Run(v1::SyncService::Stub& stub,
                                              grpc::ClientContext& context,
                                              const v1::FetchRequest& request,
                                              const FrameTaker& take) {
  {
    MutexLock lock(mutex_);
    arrived_at_ = std::chrono::steady_clock::now();
  }
  const auto reader = stub.Fetch(&context, request);
  std::thread reading([&] { Read(*reader); });
  const Status taken = TakeAll(take);
  {
    MutexLock lock(mutex_);
    stopped_ = true;
    changed_.NotifyAll();
  }
  if (!taken.ok()) context.TryCancel();
  reading.join();
  Status read;
  {
    MutexLock lock(mutex_);
    read = read_;
  }
  if (!read.ok()) context.TryCancel();  // Finish would wait for what is not read
  Status status = FromGrpc(reader->Finish());
  // A cancelled call does not mean that the version is given up: perhaps its stream was cancelled.
  if (absl::IsCancelled(status)) status = UnavailableError("{}", Message(status));
  for (const Status& ended : {taken, read, status}) DWS_RETURN_IF_ERROR(ended);
  if (head_bytes_ == 0 || head_.size() != head_bytes_) {
    return UnavailableError("a delta ended after {} of {} bytes of its header and manifest",
                            head_.size(), head_bytes_);
  }
  speed_.Add(measured_bytes_, measured_);
  return std::move(head_);
}

Status EarlyCall::TakeAll(const FrameTaker& take) {
  while (true) {
    DWS_ASSIGN_OR_RETURN(const std::optional<Batch> batch, Next());
    if (!batch.has_value()) return OkStatus();
    DWS_RETURN_IF_ERROR(take(batch->frames, batch->spool));
  }
}

Result<std::optional<EarlyCall::Batch>> EarlyCall::Next() {
  MutexLock lock(mutex_);
  while (!ended_ && !IsGroup()) {
    changed_.WaitFor(mutex_, kWantedPoll);
    if (options_.wanted && !options_.wanted()) return CancelledError("it was given up");
    if (std::chrono::steady_clock::now() - arrived_at_ > limits::kRpcDeadline) {
      return UnavailableError("no byte of it has arrived for {} s",
                              ToSeconds(limits::kRpcDeadline));
    }
  }
  if (waiting_.has_value()) taken_bytes_ += waiting_->spool.size_bytes();
  changed_.NotifyAll();
  return std::exchange(waiting_, std::nullopt);
}

bool EarlyCall::IsGroup() const {
  const uint64_t part = std::min(taken_bytes_ / kGroupPart, kWaitingBytesMax);
  return waiting_.has_value() && waiting_->spool.size_bytes() >= std::max(kGroupBytesMin, part);
}

bool EarlyCall::AwaitRoom() {
  MutexLock lock(mutex_);
  while (!stopped_ && waiting_.has_value() && waiting_->spool.size_bytes() >= kWaitingBytesMax) {
    last_ = {};  // the link is not what is slow
    changed_.Wait(mutex_);
  }
  return !stopped_;
}

void EarlyCall::Read(grpc::ClientReader<v1::FetchChunk>& reader) {
  v1::FetchChunk chunk;
  Status status;
  bool first = true;
  while (status.ok() && AwaitRoom() && reader.Read(&chunk)) {
    if (std::exchange(first, false)) status = check_peer_();
    if (status.ok()) status = OnChunk(chunk);
  }
  MutexLock lock(mutex_);
  read_ = status;
  ended_ = true;
  changed_.NotifyAll();
}

void EarlyCall::Measure(const v1::FetchChunk& chunk) {
  const TimePoint now = std::chrono::steady_clock::now();
  // The time of a small chunk that comes alone is the latency of a message.
  if (!chunk.waited() && last_ != TimePoint() &&
      chunk.data().size() >= limits::kLinkSampleBytesMin) {
    measured_bytes_ += chunk.data().size();
    measured_ += now - last_;
  }
  last_ = now;
}

Status EarlyCall::OnChunk(const v1::FetchChunk& chunk) {
  if (chunk.data().size() > limits::kFetchChunkBytesMax) {
    return DataLossError("a chunk of {} bytes, at most {} are supported", chunk.data().size(),
                         limits::kFetchChunkBytesMax);
  }
  if (chunk.data().empty()) return DataLossError("a chunk without data");
  Measure(chunk);
  if (chunk.frames().empty()) return AddHead(chunk);
  uint64_t offset = 0;
  for (const v1::EarlyFrame& frame : chunk.frames()) {
    if (frame.entry().size_bytes() > chunk.data().size() - offset) break;
    DWS_RETURN_IF_ERROR(
        AddFrame(frame, AsBytes(chunk.data()).subspan(offset, frame.entry().size_bytes())));
    offset += frame.entry().size_bytes();
  }
  if (offset == chunk.data().size()) return OkStatus();
  return DataLossError("a chunk of {} bytes, whose frames do not have that size together",
                       chunk.data().size());
}

Status EarlyCall::AddHead(const v1::FetchChunk& chunk) {
  const bool first = head_bytes_ == 0;
  if (first) head_bytes_ = chunk.object_bytes();
  if (head_bytes_ == 0 || head_bytes_ > kObjectHeaderBytes + limits::kManifestBytesMax ||
      chunk.object_bytes() != head_bytes_ || chunk.offset() != head_.size() ||
      chunk.data().size() > head_bytes_ - head_.size()) {
    return DataLossError(
        "a chunk of {} bytes at {} of {} of header and manifest, expected at most {} at {} of {}",
        chunk.data().size(), chunk.offset(), chunk.object_bytes(), limits::kFetchChunkBytesMax,
        head_.size(), head_bytes_);
  }
  if (first && options_.progress != nullptr) options_.progress->total_bytes += head_bytes_;
  const ByteSpan bytes = AsBytes(chunk.data());
  head_.insert(head_.end(), bytes.begin(), bytes.end());
  MutexLock lock(mutex_);
  arrived_at_ = std::chrono::steady_clock::now();
  if (options_.progress != nullptr) options_.progress->done_bytes += bytes.size();
  return OkStatus();
}

// A slice's frames must ascend, which bounds their number.
Status EarlyCall::AddFrame(const v1::EarlyFrame& message, ByteSpan bytes) {
  const RankSlice slice(message.rank_slice());
  SpooledFrame frame{.slice = slice, .entry = FromProto(message.entry())};
  const bool known = slice.value() < layout_.slice_count() && Selects(slices_, slice);
  if (!known || head_bytes_ > 0) {
    return DataLossError("a frame of rank slice {}, which was not asked for, or too late",
                         slice.value());
  }
  const uint32_t blocks = layout_.slice(slice).blocks;
  uint32_t& next = next_block_[slice];
  const FrameEntry& entry = frame.entry;
  if (entry.block_count == 0 || entry.first_block < next || entry.first_block > blocks ||
      entry.block_count > blocks - entry.first_block || bytes.empty()) {
    return DataLossError(
        "a frame of {} bytes with blocks {} + {} of rank slice {}, expected them between {} and {}",
        bytes.size(), entry.first_block, entry.block_count, slice.value(), next, blocks);
  }
  next = entry.first_block + entry.block_count;
  if (!message.class_table().empty()) {
    DWS_ASSIGN_OR_RETURN(frame.classes, UnpackClassTable(AsBytes(message.class_table())));
  }
  if (options_.progress != nullptr) options_.progress->total_bytes += bytes.size();
  MutexLock lock(mutex_);
  if (!waiting_.has_value()) {
    Spool::Options options = options_;
    options.size_bytes_max = kWaitingBytesMax + limits::kFetchChunkBytesMax;
    waiting_.emplace(options);
  }
  frame.spool_offset = waiting_->spool.size_bytes();
  DWS_RETURN_IF_ERROR(waiting_->spool.Append(bytes));
  waiting_->frames.push_back(std::move(frame));
  arrived_at_ = std::chrono::steady_clock::now();
  if (IsGroup()) changed_.NotifyAll();
  return OkStatus();
}

}  // namespace dws
