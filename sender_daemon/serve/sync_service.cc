#include "sender_daemon/serve/sync_service.h"

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/delta/objects/object.h"
#include "common/delta/objects/object_part.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/data_message.h"
#include "common/service/grpc/full_frame_message.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/grpc/paced_write.h"
#include "common/service/sockets/pass_descriptor.h"
#include "common/transport/same_host/host_id.h"
#include "sender_daemon/serve/transfers/early_stream.h"
#include "sender_daemon/serve/transfers/full_stream.h"

namespace dws {
namespace {

// Returns the current state if it has the stream and the layout that `request` names.
template <typename Request>
Result<RankStatePtr> StateOf(const ReceiverHub& hub, const Request& request) {
  DWS_ASSIGN_OR_RETURN(const StreamId stream, FromProto(request.stream()));
  const Digest layout = FromProto(request.layout_signature());
  RankStatePtr state = hub.WithLayout(layout);  // perhaps of a view
  if (state == nullptr) state = hub.Current();
  if (state == nullptr) return AbortedError("no trainer has registered with this sender yet");
  if (state->stream != stream) {
    return AbortedError("stream {} has ended, this sender serves {}", ToString(stream),
                        ToString(state->stream));
  }
  if (layout != state->layout().signature()) {
    return AbortedError("the layout was refined meanwhile: the sender's next welcome has it");
  }
  return state;
}

// What a Fetch has still to send.
struct FetchRange {
  ObjectPtr object;                 // keeps the object alive
  std::vector<ObjectRange> ranges;  // the remaining ranges, the next one last
  uint64_t total_bytes = 0;         // of the object or part
  uint64_t offset = 0;              // offset of the next byte in it
  ServedKind kind = ServedKind::kDelta;
};

// Sends one object, or a range of it, in chunks, from the memory that all receivers share. Owns
// itself until OnDone.
class FetchStream final : public grpc::ServerWriteReactor<grpc::ByteBuffer> {
 public:
  FetchStream(SenderMetrics& metrics, EgressLimit& egress) : metrics_(metrics), paced_(egress) {}

  void Send(FetchRange range) {
    DWS_CHECK(range.object != nullptr);
    range_ = std::move(range);
    Next();
  }
  void OnWriteDone(bool ok) override {
    message_.Clear();
    if (!ok) return Finish({grpc::StatusCode::CANCELLED, "the receiver hung up"});
    DWS_KILLPOINT("sender.fetch.after_chunk");
    Next();
  }
  void OnCancel() override { paced_.Cancel(); }
  void OnDone() override { delete this; }

 private:
  void Next() {
    if (range_.ranges.empty()) return Finish(grpc::Status::OK);
    v1::FetchChunk head;
    head.set_object_bytes(range_.total_bytes);
    head.set_offset(range_.offset);
    std::vector<grpc::Slice> data;
    uint64_t data_bytes = 0;
    while (!range_.ranges.empty() && data_bytes < limits::kFetchChunkBytesMax) {
      ObjectRange& next = range_.ranges.back();
      DWS_CHECK(next.offset <= range_.object->size() &&
                next.size_bytes <= range_.object->size() - next.offset);
      const uint64_t size = std::min(limits::kFetchChunkBytesMax - data_bytes, next.size_bytes);
      data.push_back(
          SharedSlice(ByteSpan(*range_.object).subspan(next.offset, size), range_.object));
      data_bytes += size;
      next.offset += size;
      next.size_bytes -= size;
      if (next.size_bytes == 0) range_.ranges.pop_back();
    }
    range_.offset += data_bytes;
    metrics_.OnServed(range_.kind, data_bytes);
    message_ = DataMessage(head, v1::FetchChunk::kDataFieldNumber, data);
    paced_.At(data_bytes, [this] { StartWrite(&message_); });
  }

  SenderMetrics& metrics_;
  PacedWrite paced_;
  FetchRange range_;
  grpc::ByteBuffer message_;
};

Result<std::vector<RankSlice>> ParseSlices(const google::protobuf::RepeatedField<uint32_t>& numbers,
                                           const RankLayout& layout) {
  std::vector<RankSlice> slices;
  for (const uint32_t slice : numbers) {
    if (slice >= layout.slice_count() || (!slices.empty() && slices.back().value() >= slice)) {
      return InvalidArgumentError("rank slice {} is out of order or not among the {} of the layout",
                                  slice, layout.slice_count());
    }
    slices.push_back(RankSlice(slice));
  }
  return slices;
}

Result<SliceSelection> SelectionOf(const v1::FetchRequest& request, const RankLayout& layout) {
  if (!request.has_only()) return SliceSelection();
  DWS_ASSIGN_OR_RETURN(std::vector<RankSlice> slices,
                       ParseSlices(request.only().rank_slices(), layout));
  return SliceSelection(std::move(slices));
}

// `version` is that of the object, if it is retained.
Result<std::vector<ObjectRange>> RangesOf(const std::vector<std::byte>& object,
                                          const RetainedVersion* version,
                                          const v1::FetchRequest& request,
                                          const RankLayout& layout) {
  DWS_ASSIGN_OR_RETURN(const SliceSelection only, SelectionOf(request, layout));
  // The common case: nothing needs to be parsed again.
  if (version != nullptr && &version->object == &object) {
    return PartRanges(version->header, version->manifest, only);
  }
  DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(object));
  if (!only.has_value()) return PartRanges(header, {}, only);
  DWS_ASSIGN_OR_RETURN(const DeltaManifest manifest, ParseObjectManifest(object, layout));
  return PartRanges(header, manifest, only);
}

DeltaProfile ProfileOf(const v1::FetchRequest& request) {
  if (request.class_split()) return DeltaProfile::kWan;
  return request.dense_raw() ? DeltaProfile::kDirect : DeltaProfile::kFast;
}

Result<FetchRange> OpenRange(const ReceiverHub& hub, const v1::FetchRequest& request) {
  DWS_ASSIGN_OR_RETURN(const RankStatePtr state, StateOf(hub, request));
  DWS_ASSIGN_OR_RETURN(ObjectPtr object,
                       state->log->Object(WeightVersion(request.base_version()),
                                          WeightVersion(request.version()), ProfileOf(request)));
  const RetainedVersionPtr version = state->log->Find(WeightVersion(request.version()));
  DWS_ASSIGN_OR_RETURN(std::vector<ObjectRange> ranges,
                       RangesOf(*object, version.get(), request, state->layout()));
  const uint64_t size = SizeOf(ranges);
  if (request.size_bytes_max() > 0 && size > request.size_bytes_max()) {
    return ResourceExhaustedError("the object or part has {} bytes, at most {} are wanted", size,
                                  request.size_bytes_max());
  }
  if (request.offset() > size || request.length() > size - request.offset()) {
    return InvalidArgumentError("bytes {} + {} are outside the {} bytes of the object or part",
                                request.offset(), request.length(), size);
  }
  const uint64_t length = request.length() == 0 ? size - request.offset() : request.length();
  const bool retained = version != nullptr && (&version->object == object.get() ||
                                               &version->other_object == object.get());
  ranges = Within(ranges, request.offset(), length);
  std::reverse(ranges.begin(), ranges.end());
  return FetchRange{.object = std::move(object),
                    .ranges = std::move(ranges),
                    .total_bytes = size,
                    .offset = request.offset(),
                    .kind = retained ? ServedKind::kDelta : ServedKind::kSquash};
}

Result<EarlyOrder> OpenEarly(const ReceiverHub& hub, const v1::FetchRequest& request) {
  DWS_ASSIGN_OR_RETURN(RankStatePtr state, StateOf(hub, request));
  if (request.offset() != 0 || request.length() != 0) {
    return InvalidArgumentError(
        "bytes {} + {} of a version that may be in the making: it is fetched without offset and "
        "length",
        request.offset(), request.length());
  }
  DWS_ASSIGN_OR_RETURN(SliceSelection only, SelectionOf(request, state->layout()));
  const WeightVersion version(request.version());
  const WeightVersion base(request.base_version());
  std::shared_ptr<OpenDelta> open = state->snapshot->in_flight().open_delta();
  if (open != nullptr && (open->version() != version || open->base() != base)) open = nullptr;
  if (open == nullptr) {
    const RetainedVersionPtr retained = state->log->Find(version);
    if (retained == nullptr || retained->base != base) {
      return AbortedError("no delta from version {} to {} is being captured, or is retained",
                          base.value(), version.value());
    }
  }
  const DeltaProfile profile = ProfileOf(request);
  state->log->Note(profile);
  return EarlyOrder{.state = std::move(state),
                    .version = version,
                    .profile = profile,
                    .only = std::move(only),
                    .open = std::move(open)};
}

Result<FullOrder> OpenFull(const ReceiverHub& hub, const v1::FetchFullRequest& request) {
  DWS_ASSIGN_OR_RETURN(RankStatePtr state, StateOf(hub, request));
  DWS_ASSIGN_OR_RETURN(auto ranges, ParseBlockRanges(request.blocks(), state->layout()));
  const WeightVersion version(request.version());
  // One that is captured, but not sealed, is not retained yet.
  const bool early = request.early() && version.value() > 0 &&
                     (state->snapshot->in_flight().replacing() == version ||
                      state->snapshot->in_flight().captured_last(version));
  if (!early && state->log->Find(version) == nullptr) {
    return AbortedError("version {} is no longer retained; take a newer one", version.value());
  }
  return FullOrder{
      .state = std::move(state), .version = version, .ranges = std::move(ranges), .early = early};
}

template <typename Request>
grpc::Status Parse(const grpc::ByteBuffer& request, Request& message) {
  grpc::ByteBuffer bytes(request);
  return grpc::SerializationTraits<Request>::Deserialize(&bytes, &message);
}

Status AnswerPeers(const ReceiverHub& hub, PeerDirectory* peers, const Peer& peer,
                   const v1::PeersRequest& request, v1::PeersReply& reply) {
  if (peers == nullptr) return UnimplementedError("receivers of this sender serve nobody");
  DWS_RETURN_IF_ERROR(CheckPeer(peer, ReceiverIdentity(hub.job_id(), request.receiver_id()),
                                fmt::format("receiver '{}'", request.receiver_id())));
  DWS_ASSIGN_OR_RETURN(const RankStatePtr state, StateOf(hub, request));
  const WeightVersion version(request.version());
  const RetainedVersionPtr retained = state->log->Find(version);
  if (retained == nullptr) {
    return AbortedError("version {} is no longer retained; take a newer one", version.value());
  }
  return peers->Answer(request, {.stream = state->stream, .version = version},
                       state->log->Newest()->version, retained->base.has_value(), reply);
}

// Makes `stream` send, or end with, the result of `open`, which runs on the executor.
template <typename Stream, typename Open>
Stream* Serve(Executor& executor, Stream* stream, Open open) {
  if (!executor.Post([stream, open = std::move(open)] {
        auto order = open();
        if (!order.ok()) return stream->Finish(ToGrpc(order.status()));
        stream->Send(*std::move(order));
      })) {
    stream->Finish(ToGrpc(ServesTooMany()));
  }
  return stream;
}

// `peer`: the process that asks, if it asks over the unix socket.
Status PassSnapshot(const ReceiverHub& hub, HandleSocket& handles, const std::string& host_id,
                    const std::optional<UnixPeer>& peer, const v1::OpenSnapshotRequest& request,
                    v1::OpenSnapshotReply& reply) {
  DWS_ASSIGN_OR_RETURN(const RankStatePtr state, StateOf(hub, request));
  if (!IsThisHost(request.host(), host_id)) {
    return FailedPreconditionError("this sender is on another host");
  }
  reply.set_snapshot(state->snapshot->memory().id());
  if (request.mapped() == reply.snapshot()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(const HandleToken token,
                       PassDescriptor(handles, peer, "snapshot", [snapshot = state->snapshot] {
                         return snapshot->memory().ReadOnlyDescriptor();
                       }));
  reply.set_token(token.data(), token.size());
  reply.set_handle_socket(handles.path());
  return OkStatus();
}

// The loan keeps the snapshot alive: its stream may end while the snapshot is read.
Status LendSnapshot(const ReceiverHub& hub, FabricHost& fabric,
                    const v1::OpenFabricRequest& request, v1::OpenFabricReply& reply) {
  DWS_ASSIGN_OR_RETURN(const RankStatePtr state, StateOf(hub, request));
  if (!state->layout().view().empty()) {  // one snapshot is lent at a time
    return FailedPreconditionError("views are not lent over a fabric");
  }
  const SnapshotMemory& memory = state->snapshot->memory();
  DWS_ASSIGN_OR_RETURN(
      const RemoteLoan loan,
      fabric.Lend({.id = memory.id(), .bytes = memory.all(), .keeper = state->snapshot}));
  const RemoteRegion& region = loan.region;
  reply.set_provider(std::string(ToString(region.provider)));
  reply.set_address_format(region.address_format);
  reply.set_address(region.address.data(), region.address.size());
  reply.set_base(region.base);
  reply.set_size(region.size);
  reply.set_key(region.key);
  reply.set_lease_seconds(
      static_cast<uint32_t>(std::chrono::duration_cast<std::chrono::seconds>(loan.lease).count()));
  return OkStatus();
}

}  // namespace

grpc::ServerBidiReactor<v1::SyncUp, v1::SyncDown>* SyncServiceImpl::Sync(
    grpc::CallbackServerContext* context) {
  return SyncStream::Start(streams_, PeerOf(context->auth_context().get()));
}

grpc::ServerUnaryReactor* SyncServiceImpl::Describe(grpc::CallbackServerContext* context,
                                                    const v1::DescribeRequest* request,
                                                    v1::DescribeReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  const auto state = StateOf(hub_, *request);
  if (!state.ok()) {
    reactor->Finish(ToGrpc(state.status()));
    return reactor;
  }
  const RetainedVersionPtr version = (*state)->log->Find(WeightVersion(request->version()));
  if (version == nullptr) {
    reactor->Finish(ToGrpc(
        AbortedError("version {} is no longer retained; take a newer one", request->version())));
    return reactor;
  }
  DWS_CHECK(version->after.size() == (*state)->layout().slice_count());
  for (const Digest& digest : version->after) *reply->add_slices() = ToProto(digest);
  *reply->mutable_state_token() = ToProto(StateToken(version->after));
  reactor->Finish(grpc::Status::OK);
  return reactor;
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SyncServiceImpl::Fetch(
    grpc::CallbackServerContext*, const grpc::ByteBuffer* request) {
  v1::FetchRequest message;
  const grpc::Status parsed = Parse(*request, message);
  if (!parsed.ok()) {
    auto* stream = new FetchStream(metrics_, egress_);
    stream->Finish(parsed);
    return stream;
  }
  // On the executor: composing a squash takes long.
  if (message.early()) {
    return Serve(delta_executor_, new EarlyStream(delta_executor_, metrics_, egress_),
                 [this, message = std::move(message)] { return OpenEarly(hub_, message); });
  }
  return Serve(delta_executor_, new FetchStream(metrics_, egress_),
               [this, message = std::move(message)] { return OpenRange(hub_, message); });
}

grpc::ServerWriteReactor<grpc::ByteBuffer>* SyncServiceImpl::FetchFull(
    grpc::CallbackServerContext* context, const grpc::ByteBuffer* request) {
  const bool admitted = ++full_transfers_ <= limits::kFullTransfersMax;
  auto* stream = new FullStream(full_executor_, metrics_, egress_, full_transfers_);
  if (!admitted) {
    stream->Finish(ToGrpc(ServesTooMany()));
    return stream;
  }
  v1::FetchFullRequest message;
  const grpc::Status parsed = Parse(*request, message);
  if (!parsed.ok()) {
    stream->Finish(parsed);
    return stream;
  }
  const Identity reader = ReceiverIdentity(hub_.job_id(), message.receiver_id());
  if (streams_.peers != nullptr && !message.receiver_id().empty() &&
      CheckPeer(PeerOf(context->auth_context().get()), reader, "the reader").ok()) {
    stream->OnProgress([peers = streams_.peers, id = message.receiver_id()](bool done) {
      peers->OnRead(id, done);
    });
  }
  return Serve(full_executor_, stream,
               [this, message = std::move(message)] { return OpenFull(hub_, message); });
}

grpc::ServerUnaryReactor* SyncServiceImpl::OpenSnapshot(grpc::CallbackServerContext* context,
                                                        const v1::OpenSnapshotRequest* request,
                                                        v1::OpenSnapshotReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(PassSnapshot(hub_, handles_, streams_.host_id, PeerOfCall(context->peer()),
                                      *request, *reply)));
  return reactor;
}

grpc::ServerUnaryReactor* SyncServiceImpl::OpenFabric(grpc::CallbackServerContext* context,
                                                      const v1::OpenFabricRequest* request,
                                                      v1::OpenFabricReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  // On the executor: pinning memory takes long.
  if (!full_executor_.Post([this, reactor, request, reply] {
        reactor->Finish(ToGrpc(LendSnapshot(hub_, fabric_, *request, *reply)));
      })) {
    reactor->Finish(ToGrpc(ServesTooMany()));
  }
  return reactor;
}

grpc::ServerUnaryReactor* SyncServiceImpl::OpenGpuCopies(grpc::CallbackServerContext* context,
                                                         const v1::OpenGpuCopiesRequest* request,
                                                         v1::OpenGpuCopiesReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Result<RankStatePtr> state = StateOf(hub_, *request);
  if (!state.ok()) {
    reactor->Finish(ToGrpc(state.status()));
  } else {
    loans_.Answer(*std::move(state), PeerOfCall(context->peer()), *request, *reply,
                  [reactor](const Status& status) { reactor->Finish(ToGrpc(status)); });
  }
  return reactor;
}

grpc::ServerUnaryReactor* SyncServiceImpl::Peers(grpc::CallbackServerContext* context,
                                                 const v1::PeersRequest* request,
                                                 v1::PeersReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(
      AnswerPeers(hub_, streams_.peers, PeerOf(context->auth_context().get()), *request, *reply)));
  return reactor;
}

}  // namespace dws
