// A message is made when it is written, so a stream that is slow gets the newest state, and nothing
// waits for it.
#include "sender_daemon/on_demand/train_service.h"

#include <algorithm>
#include <utility>

#include "common/base/log/log.h"
#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/grpc/server_stream.h"
#include "common/service/protocol_version.h"
#include "common/service/sockets/pass_descriptor.h"
#include "common/service/sockets/unix_socket.h"
#include "common/transport/same_host/host_id.h"
#include "sender_daemon/on_demand/gather/limits.h"
#include "sender_daemon/serve/sync_messages.h"

namespace dws {

// One sender's stream. Lifecycle: owns itself until its end; TrainPeers shares it. Threads: safe
// from any.
class TrainStream final : public ServerStream<v1::TrainUp, v1::TrainDown>,
                          public std::enable_shared_from_this<TrainStream> {
 public:
  static TrainStream* Start(TrainPeers& peers, Peer peer) {
    return Run(std::shared_ptr<TrainStream>(new TrainStream(peers, std::move(peer))));
  }

  void WelcomeDue() {
    Update([this] { welcome_due_ = published_due_ = true; });
  }
  void PublishedDue() {
    Update([this] { published_due_ = true; });
  }
  void KeepaliveDue() {
    Update([this] { keepalive_due_ = true; });
  }

 private:
  TrainStream(TrainPeers& peers, Peer peer)
      : ServerStream("the other sender", limits::kTrainQueueMax),
        peers_(peers),
        peer_(std::move(peer)) {}

  Status OnMessage(const v1::TrainUp& message) override {
    const Status status = HandleUp(message);
    if (!status.ok()) LogWarning("train_stream_refused", {{"reason", Message(status)}});
    return status;
  }

  Status HandleUp(const v1::TrainUp& message) {
    {
      MutexLock lock(mutex_);
      if (greeted_ == message.has_hello()) {
        return InvalidArgumentError(
            "expected TrainHello as the first message of a Train stream, and only there");
      }
    }
    if (message.has_train()) {
      if (peers_.listener_ != nullptr) peers_.listener_->OnUp(rank_, message.train());
      return OkStatus();
    }
    if (!message.has_hello()) return OkStatus();  // of a newer minor version: ignored
    const v1::TrainHello& hello = message.hello();
    if (hello.job_id().size() > limits::kIdBytesMax) {
      return InvalidArgumentError("a TrainHello has a job id of {} bytes, at most {} are supported",
                                  hello.job_id().size(), limits::kIdBytesMax);
    }
    if (hello.protocol_major() != kProtocolMajor) {
      return UnimplementedError(
          "the sender of trainer rank {} speaks protocol {}.{}, this sender {}.{}: upgrade the "
          "older one",
          hello.trainer_rank(), hello.protocol_major(), hello.protocol_minor(), kProtocolMajor,
          kProtocolMinor);
    }
    if (hello.job_id() != peers_.job_id()) {
      return FailedPreconditionError("this sender serves job '{}', the other belongs to '{}'",
                                     peers_.job_id(), EscapeUnprintable(hello.job_id()));
    }
    if (hello.wanted_rank() != peers_.rank().value()) {
      return FailedPreconditionError("this sender is of trainer rank {}, expected {}",
                                     peers_.rank().value(), hello.wanted_rank());
    }
    DWS_RETURN_IF_ERROR(
        CheckPeer(peer_, SenderIdentity(hello.job_id(), hello.trainer_rank(), Role::kTrain),
                  fmt::format("the sender of trainer rank {}", hello.trainer_rank())));
    rank_ = TrainerRank(hello.trainer_rank());
    DWS_RETURN_IF_ERROR(peers_.Add(rank_, shared_from_this()));
    LogInfo("train_peer_connected", {{"trainer_rank", hello.trainer_rank()}});
    // Without a trainer, too, the other side is to hear that it is connected.
    Update(
        [this] { greeted_ = host_due_ = welcome_due_ = published_due_ = keepalive_due_ = true; });
    if (peers_.listener_ != nullptr) peers_.listener_->OnPeer(rank_);
    return OkStatus();
  }

  void OnEnd(const Status& /*reason*/) override { peers_.Remove(rank_, shared_from_this()); }

  Fill Next() override {
    if (!greeted_) return nullptr;
    // Under the lock: never older than what set a flag.
    const RankStatePtr state = peers_.state();
    Fill fill;
    if (std::exchange(host_due_, false)) {
      fill = [this](v1::TrainDown& down) {
        down.mutable_host()->set_host_id(peers_.host().id);
        down.mutable_host()->set_cache_bytes(peers_.host().cache_bytes);
        down.mutable_host()->set_accumulate_bytes(peers_.host().accumulate_bytes);
      };
    } else if (state != nullptr && std::exchange(welcome_due_, false)) {
      fill = [this, state](v1::TrainDown& down) {
        FillWelcome(*state, *down.mutable_welcome());
        down.mutable_welcome()->set_job_id(peers_.job_id());
      };
    } else if (state != nullptr && std::exchange(published_due_, false)) {
      fill = [state](v1::TrainDown& down) {
        v1::Published& published = *down.mutable_published();
        *published.mutable_stream() = ToProto(state->stream);
        published.set_rank_epoch(state->rank_epoch.value());
        for (const RetainedVersionPtr& version : state->log->All()) {
          published.add_versions(version->version.value());
        }
      };
    } else if (fill = ServerStream::Next(); fill == nullptr && keepalive_due_) {
      fill = [](v1::TrainDown& down) { down.mutable_keepalive(); };
    }
    if (fill != nullptr) keepalive_due_ = false;  // every message shows that we live
    return fill;
  }

  TrainPeers& peers_;
  const Peer peer_;
  TrainerRank rank_;  // from the hello on; used only in gRPC's reactions
  bool greeted_ GUARDED_BY(mutex_) = false;
  bool host_due_ GUARDED_BY(mutex_) = false;
  bool welcome_due_ GUARDED_BY(mutex_) = false;
  bool published_due_ GUARDED_BY(mutex_) = false;
  bool keepalive_due_ GUARDED_BY(mutex_) = false;
};

TrainPeers::TrainPeers(std::string job_id, TrainerRank rank, TrainListener* listener,
                       OwnerHost host)
    : job_id_(std::move(job_id)),
      rank_(rank),
      listener_(listener),
      host_(std::move(host)),
      keepalives_([this] {
        for (const auto& stream : Streams()) stream->KeepaliveDue();
        return limits::kKeepaliveInterval;
      }) {
  keepalives_.Start(limits::kKeepaliveInterval);
}

TrainPeers::~TrainPeers() { Stop(); }

RankStatePtr TrainPeers::state() const {
  MutexLock lock(mutex_);
  return state_;
}

std::set<std::shared_ptr<TrainStream>> TrainPeers::Streams() const {
  MutexLock lock(mutex_);
  return streams_;
}

void TrainPeers::SetStatus(std::function<void(v1::OnDemandStatus& status)> fill) {
  MutexLock lock(mutex_);
  fill_ = std::move(fill);
}

void TrainPeers::FillStatus(v1::SenderStatus& status) const {
  std::function<void(v1::OnDemandStatus&)> fill;
  {
    MutexLock lock(mutex_);
    fill = fill_;
  }
  if (fill != nullptr) fill(*status.mutable_on_demand());
}

void TrainPeers::Welcome(const RankStatePtr& state) {
  {
    MutexLock lock(mutex_);
    state_ = state;
  }
  for (const auto& stream : Streams()) stream->WelcomeDue();
}

void TrainPeers::Offer(const RankStatePtr& /*state*/) {
  for (const auto& stream : Streams()) stream->PublishedDue();
}

void TrainPeers::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  for (const auto& stream : Streams()) {
    stream->EndNow(UnavailableError("the sender is shutting down"));
  }
  keepalives_.Stop();
}

Status TrainPeers::Add(TrainerRank rank, const std::shared_ptr<TrainStream>& stream) {
  MutexLock lock(mutex_);
  if (stopping_) return UnavailableError("the sender is shutting down");
  if (streams_.size() >= limits::kTrainRanksMax) {
    return ResourceExhaustedError("{} senders are connected, more are not supported",
                                  streams_.size());
  }
  streams_.insert(stream);
  newest_[rank] = stream;
  return OkStatus();
}

void TrainPeers::Remove(TrainerRank rank, const std::shared_ptr<TrainStream>& stream) {
  bool last = false;
  {
    MutexLock lock(mutex_);
    streams_.erase(stream);
    const auto newest = newest_.find(rank);
    last = newest != newest_.end() && newest->second == stream;
    if (last) newest_.erase(newest);
  }
  if (last && listener_ != nullptr) listener_->OnPeerGone(rank);
}

void TrainPeers::Send(TrainerRank rank, v1::TrainMessage message) {
  std::shared_ptr<TrainStream> stream;
  {
    MutexLock lock(mutex_);
    const auto newest = newest_.find(rank);
    if (newest != newest_.end()) stream = newest->second;
  }
  if (stream == nullptr) return;
  v1::TrainDown down;
  *down.mutable_train() = std::move(message);
  stream->Send(std::move(down));
}

namespace {

// Sends one piece. Owns itself until it has ended.
class PieceStream final : public grpc::ServerWriteReactor<v1::PieceChunk> {
 public:
  void Start(LentPiece piece) {
    piece_ = std::move(piece);
    chunk_.set_dtype(static_cast<v1::DType>(piece_.dtype));
    chunk_.set_size_bytes(piece_.bytes.size());
    *chunk_.mutable_digest() = ToProto(DigestBytes(piece_.bytes, 0));
    Write();
  }
  void OnWriteDone(bool ok) override {
    if (!ok) return Finish(ToGrpc(CancelledError("the owner hung up")));
    chunk_.Clear();
    if (sent_ == piece_.bytes.size()) return Finish(grpc::Status::OK);
    Write();
  }
  void OnDone() override { delete this; }

 private:
  void Write() {
    const ByteSpan part = piece_.bytes.subspan(
        sent_, std::min(limits::kPieceChunkBytes, piece_.bytes.size() - sent_));
    sent_ += part.size();
    chunk_.set_data(part.data(), part.size());
    StartWrite(&chunk_);
  }

  LentPiece piece_;
  size_t sent_ = 0;
  v1::PieceChunk chunk_;
};

Status PassOutbox(const TrainServiceImpl::Parts& parts, const std::optional<UnixPeer>& peer,
                  const v1::OpenOutboxRequest& request, v1::OpenOutboxReply& reply) {
  if (parts.engine == nullptr) return UnimplementedError("this sender has no --train-peers");
  if (!IsThisHost(request.host(), parts.peers.host().id)) {
    return FailedPreconditionError("this sender is on another host");
  }
  DWS_ASSIGN_OR_RETURN(const std::shared_ptr<RankMemory> memory, parts.engine->Outbox(request));
  reply.set_size_bytes(memory->outbox_bytes());
  DWS_ASSIGN_OR_RETURN(const HandleToken token,
                       PassDescriptor(*parts.handles, peer, "outbox",
                                      [memory] { return memory->OutboxDescriptor(); }));
  reply.set_token(token.data(), token.size());
  reply.set_handle_socket(parts.handles->path());
  return OkStatus();
}

// Errors: it is refused.
Result<HostCache::Want> WantOf(const TrainServiceImpl::Parts& parts,
                               const v1::OpenHostCopyRequest& request) {
  if (parts.cache == nullptr) return UnimplementedError("this sender has no --train-peers");
  if (!IsThisHost(request.host(), parts.peers.host().id)) {
    return FailedPreconditionError("this sender is on another host");
  }
  HostCache::Want want{.owner = TrainerRank(request.trainer_rank()),
                       .layout = FromProto(request.layout_signature()),
                       .slices = {}};
  DWS_ASSIGN_OR_RETURN(want.at.stream, FromProto(request.stream()));
  want.at.version = WeightVersion(request.version());
  for (const uint32_t slice : request.slices()) want.slices.emplace_back(slice);
  return want;
}

Status PassHostCopy(HandleSocket& handles, const std::optional<UnixPeer>& peer, uint64_t mapped,
                    const Result<HostCache::Copy>& brought, v1::OpenHostCopyReply& reply) {
  DWS_RETURN_IF_ERROR(brought.status());
  reply.set_copy((*brought)->id());
  if (mapped == reply.copy()) return OkStatus();
  DWS_ASSIGN_OR_RETURN(const HandleToken token,
                       PassDescriptor(handles, peer, "copy",
                                      [copy = *brought] { return copy->ReadOnlyDescriptor(); }));
  reply.set_token(token.data(), token.size());
  reply.set_handle_socket(handles.path());
  return OkStatus();
}

// OK: the caller, if it has a certificate, is the sender of this rank.
Status CheckRank(const TrainPeers& peers, const grpc::CallbackServerContext& context,
                 uint32_t rank) {
  return CheckPeer(PeerOf(context.auth_context().get()),
                   SenderIdentity(peers.job_id(), rank, Role::kTrain),
                   fmt::format("the sender of trainer rank {}", rank));
}

}  // namespace

grpc::ServerBidiReactor<v1::TrainUp, v1::TrainDown>* TrainServiceImpl::Train(
    grpc::CallbackServerContext* context) {
  return TrainStream::Start(parts_.peers, PeerOf(context->auth_context().get()));
}

grpc::ServerWriteReactor<v1::PieceChunk>* TrainServiceImpl::FetchPiece(
    grpc::CallbackServerContext* context, const v1::FetchPieceRequest* request) {
  auto* const stream = new PieceStream();
  const auto start = [this, stream, request = *request,
                      known = CheckRank(parts_.peers, *context, request->trainer_rank())] {
    if (!known.ok()) return stream->Finish(ToGrpc(known));
    Result<LentPiece> piece = parts_.engine == nullptr
                                  ? UnimplementedError("this sender has no --train-peers")
                                  : parts_.engine->Lend(request);
    if (!piece.ok()) return stream->Finish(ToGrpc(piece.status()));
    stream->Start(*std::move(piece));
  };
  if (parts_.executor == nullptr || !parts_.executor->Post(start)) {
    stream->Finish(ToGrpc(ResourceExhaustedError("the sender is busy or shutting down")));
  }
  return stream;
}

grpc::ServerUnaryReactor* TrainServiceImpl::OpenOutbox(grpc::CallbackServerContext* context,
                                                       const v1::OpenOutboxRequest* request,
                                                       v1::OpenOutboxReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  reactor->Finish(ToGrpc(PassOutbox(parts_, PeerOfCall(context->peer()), *request, *reply)));
  return reactor;
}

grpc::ServerUnaryReactor* TrainServiceImpl::OpenHostCopy(grpc::CallbackServerContext* context,
                                                         const v1::OpenHostCopyRequest* request,
                                                         v1::OpenHostCopyReply* reply) {
  grpc::ServerUnaryReactor* reactor = context->DefaultReactor();
  Result<HostCache::Want> want = WantOf(parts_, *request);
  if (!want.ok()) {
    reactor->Finish(ToGrpc(want.status()));
    return reactor;
  }
  parts_.cache->Bring(
      *want, [this, context, request, reply, reactor](const Result<HostCache::Copy>& brought) {
        if (context->IsCancelled()) return reactor->Finish(ToGrpc(CancelledError("nobody waits")));
        reactor->Finish(ToGrpc(PassHostCopy(*parts_.handles, PeerOfCall(context->peer()),
                                            request->mapped(), brought, *reply)));
      });
  return reactor;
}

}  // namespace dws
