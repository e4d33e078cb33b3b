#include "receiver_daemon/transfer/grpc/fetch.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_status.h"

namespace dws {
namespace {

bool IsBroken(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsUnknown(status) || absl::IsInternal(status);
}

// Counts attempts that got nowhere, and waits before the next one.
class Attempts {
 public:
  explicit Attempts(ActiveCalls& calls) : calls_(calls) {}

  // OK: try again. Else the reason not to.
  Status Next(const Status& broken, bool progressed) {
    if (!IsBroken(broken)) return broken;
    if (progressed) {
      failed_ = 0;
      delay_ = limits::kReconnectDelayMin;
    }
    if (++failed_ >= limits::kFetchAttemptsMax) return UnavailableError("{}", Message(broken));
    if (!calls_.Wait(delay_)) return CancelledError("the receiver is shutting down");
    delay_ = std::min<Duration>(delay_ * 2, limits::kReconnectDelayMax);
    return OkStatus();
  }

 private:
  ActiveCalls& calls_;
  int failed_ = 0;
  Duration delay_ = limits::kReconnectDelayMin;
};

Duration TransferTimeout(uint64_t bytes) {
  return limits::kRpcDeadline + std::chrono::seconds(bytes / limits::kFetchBytesPerSecondMin);
}

// Takes chunks until the stream ends; the reason to drop the stream, if there is one.
Status TakeChunk(const v1::FetchChunk& chunk, const Spool::Options& options,
                 std::optional<Spool>& spool, uint64_t& object_bytes) {
  if (!spool.has_value()) {
    if (chunk.object_bytes() == 0 || chunk.object_bytes() > limits::kObjectBytesMax) {
      return DataLossError("a sender offers an object of {} bytes, at most {} are supported",
                           chunk.object_bytes(), limits::kObjectBytesMax);
    }
    object_bytes = chunk.object_bytes();
    Spool::Options sized = options;
    sized.size_bytes_max = object_bytes;
    sized.size_bytes_expected = object_bytes;
    if (options.progress != nullptr) options.progress->total_bytes += object_bytes;
    spool.emplace(std::move(sized));
  }
  if (chunk.object_bytes() != object_bytes || chunk.offset() != spool->size_bytes() ||
      chunk.data().size() > limits::kFetchChunkBytesMax) {
    return DataLossError("a chunk of {} bytes at {} of {}, expected at most {} bytes at {} of {}",
                         chunk.data().size(), chunk.offset(), chunk.object_bytes(),
                         limits::kFetchChunkBytesMax, spool->size_bytes(), object_bytes);
  }
  return spool->Append(AsBytes(chunk.data()));
}

// Where a transfer of full tensors stands.
struct FullProgress {
  size_t slice = 0;    // index in the slices asked for
  uint32_t block = 0;  // next of that slice
  size_t frames = 0;   // of whole slices
};

Status TakeFrame(const v1::FullFrame& message, const RankLayout& layout,
                 std::span<const RankSlice> slices, FullProgress& progress, FetchedFull& full) {
  const FrameEntry entry = FromProto(message.entry());
  if (progress.slice >= slices.size() || message.rank_slice() != slices[progress.slice].value() ||
      entry.first_block != progress.block || entry.block_count == 0 ||
      entry.block_count > layout.slice(slices[progress.slice]).blocks - progress.block) {
    return DataLossError("a full frame of slice {}, blocks {} + {}, was not expected here",
                         message.rank_slice(), entry.first_block, entry.block_count);
  }
  if (entry.size_bytes != message.data().size() || message.data().size() > limits::kFrameBytesMax) {
    return DataLossError("a full frame of {} bytes says it has {}, at most {} are supported",
                         message.data().size(), entry.size_bytes, limits::kFrameBytesMax);
  }
  full.frames.push_back(
      {.slice = slices[progress.slice], .entry = entry, .spool_offset = full.spool.size_bytes()});
  DWS_RETURN_IF_ERROR(full.spool.Append(AsBytes(message.data())));
  progress.block += entry.block_count;
  if (progress.block == layout.slice(slices[progress.slice]).blocks) {
    ++progress.slice;
    progress.block = 0;
    progress.frames = full.frames.size();
  }
  return OkStatus();
}

}  // namespace

Result<Spool> Fetcher::Object(const StreamId& stream, WeightVersion base, WeightVersion version,
                              DeltaProfile profile, const SliceSelection& slices,
                              Spool::Options options) {
  std::optional<Spool> spool;
  uint64_t object_bytes = 0;
  Attempts attempts(calls_);
  while (true) {
    if (options.wanted && !options.wanted()) return CancelledError("it was given up");
    const uint64_t had = spool.has_value() ? spool->size_bytes() : 0;
    v1::FetchRequest request;
    *request.mutable_stream() = ToProto(stream);
    *request.mutable_layout_signature() = ToProto(layout_);
    request.set_base_version(base.value());
    request.set_version(version.value());
    request.set_offset(had);
    request.set_class_split(profile == DeltaProfile::kWan);
    request.set_dense_raw(profile == DeltaProfile::kDirect);
    if (slices.has_value()) {
      v1::SliceSelection& only = *request.mutable_only();
      for (const RankSlice slice : *slices) only.add_rank_slices(slice.value());
    }
    ActiveCalls::Call call(calls_, TransferTimeout(object_bytes - had));
    const auto reader = stub_->Fetch(call.context(), request);
    v1::FetchChunk chunk;
    Status local;
    bool first = true;
    while (local.ok() && reader->Read(&chunk)) {
      if (std::exchange(first, false)) local = check_peer_(*call.context());
      if (local.ok()) local = TakeChunk(chunk, options, spool, object_bytes);
    }
    if (!local.ok()) call.context()->TryCancel();
    Status status = FromGrpc(reader->Finish());
    if (!local.ok()) return local;
    const uint64_t have = spool.has_value() ? spool->size_bytes() : 0;
    if (status.ok() && spool.has_value() && have == object_bytes) return *std::move(spool);
    if (status.ok())
      status = UnavailableError("a transfer ended after {} of {} bytes", have, object_bytes);
    DWS_RETURN_IF_ERROR(attempts.Next(status, have > had));
  }
}

Result<Description> Fetcher::Describe(const StreamId& stream, WeightVersion version) {
  ActiveCalls::Call call(calls_, limits::kRpcDeadline);
  v1::DescribeRequest request;
  *request.mutable_stream() = ToProto(stream);
  *request.mutable_layout_signature() = ToProto(layout_);
  request.set_version(version.value());
  v1::DescribeReply reply;
  DWS_RETURN_IF_ERROR(FromGrpc(stub_->Describe(call.context(), request, &reply)));
  DWS_RETURN_IF_ERROR(check_peer_(*call.context()));
  Description description{.slices = {}, .state_token = FromProto(reply.state_token())};
  description.slices.reserve(static_cast<size_t>(reply.slices_size()));
  for (const v1::Digest& digest : reply.slices()) description.slices.push_back(FromProto(digest));
  return description;
}

Result<FetchedFull> Fetcher::Full(const StreamId& stream, WeightVersion version,
                                  const RankLayout& layout, std::span<const RankSlice> slices,
                                  Spool::Options options) {
  if (options.progress != nullptr) {
    for (const RankSlice slice : slices) {
      options.progress->total_bytes += layout.slice(slice).size_bytes();
    }
  }
  const std::function<bool()> wanted = options.wanted;
  FetchedFull full{.spool = Spool(std::move(options)), .frames = {}};
  FullProgress progress;
  Attempts attempts(calls_);
  while (true) {
    if (wanted && !wanted()) return CancelledError("it was given up");
    // What a broken transfer left of an unfinished slice is not used.
    full.frames.resize(progress.frames);
    progress.block = 0;
    const size_t had = progress.slice;
    v1::FetchFullRequest request;
    *request.mutable_stream() = ToProto(stream);
    *request.mutable_layout_signature() = ToProto(layout_);
    request.set_version(version.value());
    uint64_t bytes = 0;
    for (const RankSlice slice : slices.subspan(progress.slice)) {
      request.add_rank_slices(slice.value());
      bytes += layout.slice(slice).size_bytes();
    }
    ActiveCalls::Call call(calls_, TransferTimeout(bytes));
    const auto reader = stub_->FetchFull(call.context(), request);
    v1::FullFrame frame;
    Status local;
    bool first = true;
    while (local.ok() && reader->Read(&frame)) {
      if (std::exchange(first, false)) local = check_peer_(*call.context());
      if (local.ok()) local = TakeFrame(frame, layout, slices, progress, full);
    }
    if (!local.ok()) call.context()->TryCancel();
    Status status = FromGrpc(reader->Finish());
    if (!local.ok()) return local;
    if (status.ok() && progress.slice == slices.size()) return full;
    if (status.ok()) {
      status = UnavailableError("full tensors ended after {} of {} slices", progress.slice,
                                slices.size());
    }
    DWS_RETURN_IF_ERROR(attempts.Next(status, progress.slice > had));
  }
}

}  // namespace dws
