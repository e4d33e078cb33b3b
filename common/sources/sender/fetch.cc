#include "common/sources/sender/fetch.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <optional>
#include <utility>

#include "common/base/log/log.h"
#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/sources/sender/early_call.h"

namespace dws {
namespace {

// How many ranges one request names at most: far below the largest message.
constexpr int kRangesMax = 1 << 16;

bool IsBroken(const Status& status) {
  return absl::IsUnavailable(status) || absl::IsDeadlineExceeded(status) ||
         absl::IsCancelled(status) || absl::IsUnknown(status) || absl::IsInternal(status);
}

// A call is also cancelled with its stream, or by the sender: then another source may be asked.
Status Ended(const Status& status, ActiveCalls& calls) {
  const bool stops = !calls.Wait(Duration::zero());
  return absl::IsCancelled(status) && !stops ? UnavailableError("{}", Message(status)) : status;
}

// Counts attempts that got nowhere, and waits before the next one.
class Attempts {
 public:
  explicit Attempts(ActiveCalls& calls) : calls_(calls) {}

  // Returns OK to try again, else the reason not to.
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

// Takes one chunk. Returns the reason to drop the stream, or OK.
Status TakeChunk(const v1::FetchChunk& chunk, const Spool::Options& options, uint64_t skip_bytes,
                 std::optional<Spool>& spool, uint64_t& object_bytes) {
  if (!spool.has_value()) {
    if (chunk.object_bytes() == 0 || chunk.object_bytes() > limits::kObjectBytesMax) {
      return DataLossError("a sender offers an object of {} bytes, at most {} are supported",
                           chunk.object_bytes(), limits::kObjectBytesMax);
    }
    if (options.size_bytes_max > 0 && chunk.object_bytes() > options.size_bytes_max) {
      return ResourceExhaustedError("a sender offers an object of {} bytes, at most {} are wanted",
                                    chunk.object_bytes(), options.size_bytes_max);
    }
    object_bytes = chunk.object_bytes();
    Spool::Options sized = options;
    sized.size_bytes_max = object_bytes;
    sized.size_bytes_expected = object_bytes;
    if (options.progress != nullptr) options.progress->total_bytes += object_bytes;
    spool.emplace(std::move(sized));
    DWS_RETURN_IF_ERROR(spool->Append(std::vector<std::byte>(skip_bytes)));
  }
  if (chunk.object_bytes() != object_bytes || chunk.offset() != spool->size_bytes() ||
      chunk.data().size() > limits::kFetchChunkBytesMax) {
    return DataLossError("a chunk of {} bytes at {} of {}, expected at most {} bytes at {} of {}",
                         chunk.data().size(), chunk.offset(), chunk.object_bytes(),
                         limits::kFetchChunkBytesMax, spool->size_bytes(), object_bytes);
  }
  return spool->Append(AsBytes(chunk.data()));
}

}  // namespace

v1::FetchRequest Fetcher::ObjectRequest(const StreamId& stream, WeightVersion base,
                                        WeightVersion version, DeltaProfile profile,
                                        const SliceSelection& slices) const {
  v1::FetchRequest request;
  *request.mutable_stream() = ToProto(stream);
  *request.mutable_layout_signature() = ToProto(layout_);
  request.set_base_version(base.value());
  request.set_version(version.value());
  request.set_class_split(profile == DeltaProfile::kWan);
  request.set_dense_raw(profile == DeltaProfile::kDirect);
  if (slices.has_value()) {
    v1::SliceSelection& only = *request.mutable_only();
    for (const RankSlice slice : *slices) only.add_rank_slices(slice.value());
  }
  return request;
}

Result<std::vector<std::byte>> Fetcher::ObjectEarly(const SyncTarget& target, TrainerRank rank,
                                                    const DeltaWant& want, DeltaProfile profile,
                                                    const Spool::Options& options, LinkSpeed& speed,
                                                    const FrameTaker& take) {
  const RankLayout& layout = *target.ranks[rank.value()].layout;
  v1::FetchRequest request =
      ObjectRequest(target.stream, want.base, target.version, profile, want.slices);
  request.set_early(true);
  ActiveCalls::Call call(calls_, TransferTimeout(layout.size_bytes()));
  EarlyCall early(layout, want.slices, options, speed,
                  [&] { return check_peer_(*call.context()); });
  return early.Run(*stub_, *call.context(), request, take);
}

Result<Spool> Fetcher::Object(const StreamId& stream, WeightVersion base, WeightVersion version,
                              DeltaProfile profile, const SliceSelection& slices,
                              uint64_t skip_bytes, Spool::Options options) {
  std::optional<Spool> spool;
  uint64_t object_bytes = 0;
  v1::FetchRequest request = ObjectRequest(stream, base, version, profile, slices);
  request.set_size_bytes_max(options.size_bytes_max);
  Attempts attempts(calls_);
  while (true) {
    if (options.wanted && !options.wanted()) return CancelledError("it was given up");
    const uint64_t had = spool.has_value() ? spool->size_bytes() : skip_bytes;
    request.set_offset(had);
    const uint64_t left = object_bytes - std::min(object_bytes, had);
    ActiveCalls::Call call(calls_, TransferTimeout(left));
    const auto reader = stub_->Fetch(call.context(), request);
    v1::FetchChunk chunk;
    Status local;
    bool first = true;
    while (local.ok() && reader->Read(&chunk)) {
      if (std::exchange(first, false)) local = check_peer_(*call.context());
      if (local.ok()) local = TakeChunk(chunk, options, skip_bytes, spool, object_bytes);
    }
    if (!local.ok()) call.context()->TryCancel();
    Status status = FromGrpc(reader->Finish());
    if (!local.ok()) return local;
    const uint64_t have = spool.has_value() ? spool->size_bytes() : skip_bytes;
    if (status.ok() && spool.has_value() && have == object_bytes) return *std::move(spool);
    if (status.ok())
      status = UnavailableError("a transfer ended after {} of {} bytes", have, object_bytes);
    DWS_RETURN_IF_ERROR(attempts.Next(status, have > had));
  }
}

Result<PublishedState> Fetcher::Describe(const StreamId& stream, WeightVersion version) {
  v1::DescribeRequest request;
  *request.mutable_stream() = ToProto(stream);
  *request.mutable_layout_signature() = ToProto(layout_);
  request.set_version(version.value());
  v1::DescribeReply reply;
  for (Attempts attempts(calls_);;) {
    ActiveCalls::Call call(calls_, limits::kRpcDeadline);
    const Status status = Ended(FromGrpc(stub_->Describe(call.context(), request, &reply)), calls_);
    if (status.ok()) {
      DWS_RETURN_IF_ERROR(check_peer_(*call.context()));
      break;
    }
    if (!absl::IsUnavailable(status)) return status;
    DWS_RETURN_IF_ERROR(attempts.Next(status, false));
    reply.Clear();
  }
  PublishedState description{.slices = {}, .state_token = FromProto(reply.state_token())};
  description.slices.reserve(static_cast<size_t>(reply.slices_size()));
  for (const v1::Digest& digest : reply.slices()) description.slices.push_back(FromProto(digest));
  return description;
}

v1::FetchFullRequest Fetcher::FullRequest(const StreamId& stream, WeightVersion version) const {
  v1::FetchFullRequest request;
  *request.mutable_stream() = ToProto(stream);
  *request.mutable_layout_signature() = ToProto(layout_);
  request.set_version(version.value());
  request.set_receiver_id(receiver_id_);
  return request;
}

uint64_t Fetcher::AddMissing(const FullAssembly& assembly, uint64_t bytes_max,
                             v1::FetchFullRequest& request) const {
  uint64_t bytes = 0;
  for (BlockRange range : assembly.Missing()) {
    if (request.blocks_size() == kRangesMax || bytes >= bytes_max) break;  // the others next time
    const DType dtype = assembly.layout().slice(range.slice).dtype;
    range.block_count = std::min(range.block_count, BlocksIn(bytes_max - bytes, dtype));
    bytes += SizeBytes(assembly.layout(), range);
    v1::BlockRange& blocks = *request.add_blocks();
    blocks.set_rank_slice(range.slice.value());
    blocks.set_first_block(range.first_block);
    blocks.set_block_count(range.block_count);
  }
  return bytes;
}

Status Fetcher::FullFromPeer(const StreamId& stream, WeightVersion version, const FullPart& part,
                             FullAssembly& assembly) {
  v1::FetchFullRequest request = FullRequest(stream, version);
  request.set_trainer_rank(part.rank.value());
  AddMissing(assembly, part.bytes_max, request);
  ActiveCalls::Call call(calls_, part.timeout);
  const FullCallEnd end = CallFetchFull(
      channel_, *call.context(), request, [&] { return check_peer_(*call.context()); }, assembly);
  DWS_RETURN_IF_ERROR(end.local);
  return Ended(end.remote, calls_);
}

Result<Fetcher::PeerAnswer> Fetcher::AskForPeer(const StreamId& stream, WeightVersion version,
                                                const PeerQuestion& question) {
  v1::PeersRequest request;
  *request.mutable_stream() = ToProto(stream);
  *request.mutable_layout_signature() = ToProto(layout_);
  request.set_version(version.value());
  request.set_receiver_id(receiver_id_);
  for (const std::string& address : question.avoid) request.add_avoid(address);
  for (const std::string& address : question.without) request.add_without(address);
  request.set_begun(question.begun);
  request.set_other_ranks_bytes(question.other_ranks_bytes);
  request.set_failed(question.failed);
  request.set_only_others(question.only_others);
  v1::PeersReply reply;
  ActiveCalls::Call call(calls_, limits::kRpcDeadline);
  DWS_RETURN_IF_ERROR(Ended(FromGrpc(stub_->Peers(call.context(), request, &reply)), calls_));
  DWS_RETURN_IF_ERROR(check_peer_(*call.context()));
  return PeerAnswer{.address = reply.address(), .wait = std::chrono::milliseconds(reply.wait_ms())};
}

FullCallEnd Fetcher::CallFull(const StreamId& stream, WeightVersion version, bool early,
                              FullAssembly& assembly) {
  v1::FetchFullRequest request = FullRequest(stream, version);
  request.set_early(early);
  const uint64_t bytes = AddMissing(assembly, limits::kObjectBytesMax, request);
  ActiveCalls::Call call(calls_, TransferTimeout(bytes));
  return CallFetchFull(
      channel_, *call.context(), request, [&] { return check_peer_(*call.context()); }, assembly);
}

Status Fetcher::Full(const StreamId& stream, WeightVersion version, FullAssembly& assembly) {
  Attempts attempts(calls_);
  while (assembly.missing_blocks() > 0) {
    const uint64_t had = assembly.missing_blocks();
    const FullCallEnd end = CallFull(stream, version, false, assembly);
    DWS_RETURN_IF_ERROR(end.local);
    if (end.remote.ok() && assembly.missing_blocks() == 0) return OkStatus();
    // The stream may have ended before the sender repeated a piece that had changed on its way.
    for (const RankSlice slice : assembly.DropWrong()) {
      LogInfo("full_slice_again", {{"slice", slice.value()}, {"reason", Message(end.remote)}});
    }
    const uint64_t left = assembly.missing_blocks();
    if (left == 0) return OkStatus();
    const Status status = !end.remote.ok()
                              ? end.remote
                              : UnavailableError("full tensors ended, {} blocks are missing", left);
    DWS_RETURN_IF_ERROR(attempts.Next(status, left < had));
  }
  return OkStatus();
}

Status Fetcher::FullEarly(const StreamId& stream, WeightVersion version, FullAssembly& assembly) {
  return CallFull(stream, version, true, assembly).local;
}

Result<MappedSnapshot> Fetcher::MapSnapshot(const StreamId& stream, const RankLayout& layout,
                                            HostSnapshot& host) {
  auto mapped = host.Open(*stub_, calls_, check_peer_, stream, layout);
  DWS_RETURN_IF_ERROR(Ended(mapped.status(), calls_));
  return mapped;
}

Result<LentCopies> Fetcher::OpenGpuCopies(const CopiesWant& want, const AllowedUsers& users,
                                          const Clock& clock) {
  auto opened = LentCopies::Open(*stub_, calls_, check_peer_, want, users, clock);
  DWS_RETURN_IF_ERROR(Ended(opened.status(), calls_));
  return opened;
}

Status Fetcher::AskGpuCopies(const CopiesWant& want) {
  return Ended(LentCopies::Ask(*stub_, calls_, check_peer_, want), calls_);
}

Result<RemoteLoan> Fetcher::OpenFabric(const StreamId& stream) {
  ActiveCalls::Call call(calls_, limits::kRpcDeadline);
  v1::OpenFabricRequest request;
  *request.mutable_stream() = ToProto(stream);
  *request.mutable_layout_signature() = ToProto(layout_);
  v1::OpenFabricReply reply;
  DWS_RETURN_IF_ERROR(Ended(FromGrpc(stub_->OpenFabric(call.context(), request, &reply)), calls_));
  DWS_RETURN_IF_ERROR(check_peer_(*call.context()));
  const auto provider = FindFabricProvider(reply.provider());
  if (!provider.has_value()) {
    return FailedPreconditionError("the sender's provider '{}' is not known here",
                                   EscapeUnprintable(reply.provider()));
  }
  const ByteSpan address = AsBytes(reply.address());
  return RemoteLoan{.region = {.provider = *provider,
                               .address_format = reply.address_format(),
                               .address = {address.begin(), address.end()},
                               .base = reply.base(),
                               .size = reply.size(),
                               .key = reply.key()},
                    .lease = std::chrono::seconds(reply.lease_seconds())};
}

}  // namespace dws
