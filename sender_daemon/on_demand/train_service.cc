// A message is made when it is written, so a stream that is slow gets the newest state, and nothing
// waits for it.
#include "sender_daemon/on_demand/train_service.h"

#include <utility>

#include "common/base/log/log.h"
#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/server_stream.h"
#include "common/service/protocol_version.h"
#include "sender_daemon/on_demand/limits.h"
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
      if (greeted_) return OkStatus();  // of a newer minor version: ignored
    }
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
        CheckPeer(peer_, SenderIdentity(hello.job_id(), hello.trainer_rank()),
                  fmt::format("the sender of trainer rank {}", hello.trainer_rank())));
    DWS_RETURN_IF_ERROR(peers_.Add(shared_from_this()));
    LogInfo("train_peer_connected", {{"trainer_rank", hello.trainer_rank()}});
    // Without a trainer, too, the other side is to hear that it is connected.
    Update([this] { greeted_ = welcome_due_ = published_due_ = keepalive_due_ = true; });
    return OkStatus();
  }

  void OnEnd(const Status& /*reason*/) override { peers_.Remove(shared_from_this()); }

  Fill Next() override {
    if (!greeted_) return nullptr;
    // Under the lock: never older than what set a flag.
    const RankStatePtr state = peers_.state();
    Fill fill;
    if (state != nullptr && std::exchange(welcome_due_, false)) {
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
    } else if (keepalive_due_) {
      fill = [](v1::TrainDown& down) { down.mutable_keepalive(); };
    }
    if (fill != nullptr) keepalive_due_ = false;  // every message shows that we live
    return fill;
  }

  TrainPeers& peers_;
  const Peer peer_;
  bool greeted_ GUARDED_BY(mutex_) = false;
  bool welcome_due_ GUARDED_BY(mutex_) = false;
  bool published_due_ GUARDED_BY(mutex_) = false;
  bool keepalive_due_ GUARDED_BY(mutex_) = false;
};

TrainPeers::TrainPeers(std::string job_id, TrainerRank rank)
    : job_id_(std::move(job_id)), rank_(rank), keepalives_([this] {
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

Status TrainPeers::Add(const std::shared_ptr<TrainStream>& stream) {
  MutexLock lock(mutex_);
  if (stopping_) return UnavailableError("the sender is shutting down");
  if (streams_.size() >= limits::kTrainRanksMax) {
    return ResourceExhaustedError("{} senders are connected, more are not supported",
                                  streams_.size());
  }
  streams_.insert(stream);
  return OkStatus();
}

void TrainPeers::Remove(const std::shared_ptr<TrainStream>& stream) {
  MutexLock lock(mutex_);
  streams_.erase(stream);
}

grpc::ServerBidiReactor<v1::TrainUp, v1::TrainDown>* TrainServiceImpl::Train(
    grpc::CallbackServerContext* context) {
  return TrainStream::Start(peers_, PeerOf(context->auth_context().get()));
}

}  // namespace dws
