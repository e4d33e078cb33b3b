// What a rank puts is copied chunk by chunk into memory that was reserved before it was allocated.
#include "sender_daemon/on_demand/objects/object_services.h"

#include <optional>
#include <utility>

#include "common/base/log/log.h"
#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_credentials.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/security/access.h"
#include "common/service/sockets/unix_socket.h"
#include "sender_daemon/on_demand/objects/object_exchange.h"
#include "sender_daemon/on_demand/objects/object_relay.h"
#include "sender_daemon/on_demand/objects/object_stream.h"

namespace dws {
namespace {

// One Put. Owns itself until the call has ended.
class PutCall final : public grpc::ServerReadReactor<v1::PutObjectChunk> {
 public:
  explicit PutCall(const ObjectServiceImpl::Parts& parts) : parts_(parts) { StartRead(&chunk_); }

  void OnReadDone(bool ok) override {
    const Status status = ok ? Take() : End();
    if (!status.ok()) parts_.traffic.OnRefused();
    if (!ok || !status.ok()) return Finish(ToGrpc(status));
    chunk_.Clear();
    StartRead(&chunk_);
  }
  void OnDone() override { delete this; }

 private:
  Status Take() {
    if (object_ == nullptr) DWS_RETURN_IF_ERROR(Begin());
    const ByteSpan data = AsBytes(chunk_.data());
    if (data.size() > size_bytes_ - object_->bytes.size()) {
      return InvalidArgumentError("'{}' has more than its {} bytes", name_, size_bytes_);
    }
    object_->bytes.insert(object_->bytes.end(), data.begin(), data.end());
    return OkStatus();
  }

  Status Begin() {
    const RankObjectKey key{.name = chunk_.key().name(), .number = chunk_.key().number()};
    if (key.name.starts_with(kExchangedName)) {
      return InvalidArgumentError(
          "{}: expected a name that does not begin with '{}', as the senders' own do: put it "
          "under another name",
          ToString(key), kExchangedName);
    }
    std::optional<std::string> over_because;
    if (chunk_.has_over_because()) over_because = chunk_.over_because();
    DWS_ASSIGN_OR_RETURN(
        auto room, parts_.store.Reserve(chunk_.process(), key, chunk_.size_bytes(), over_because));
    name_ = key.name;
    size_bytes_ = chunk_.size_bytes();
    object_ = std::make_shared<RankObject>();
    object_->process = chunk_.process();
    object_->number = key.number;
    object_->rounds = chunk_.rounds();
    object_->digest = FromProto(chunk_.digest());
    object_->room = std::move(room);
    object_->bytes.reserve(size_bytes_);
    return OkStatus();
  }

  Status End() {
    if (object_ == nullptr) return InvalidArgumentError("expected a first message, found none");
    if (object_->bytes.size() != size_bytes_) {
      return InvalidArgumentError("'{}' ended after {} bytes, expected {}", name_,
                                  object_->bytes.size(), size_bytes_);
    }
    const Digest found = DigestBytes(object_->bytes, 0);
    if (found != object_->digest) {
      return DataLossError("'{}' has arrived damaged: expected digest {}, found {}; put it again",
                           name_, ToString(object_->digest), ToString(found));
    }
    object_->put_at = parts_.clock.Now();
    DWS_RETURN_IF_ERROR(parts_.store.Put(name_, object_));
    parts_.traffic.OnPut(size_bytes_);
    return OkStatus();
  }

  const ObjectServiceImpl::Parts parts_;
  v1::PutObjectChunk chunk_;
  std::string name_;
  uint64_t size_bytes_ = 0;
  std::shared_ptr<RankObject> object_;  // from the first message on
};

std::string Short(const std::string& id) { return id.substr(0, limits::kIdBytesMax); }

}  // namespace

void ObjectServiceImpl::Stop() {
  Attachment::Ptr attachment;
  {
    MutexLock lock(mutex_);
    stopping_ = true;
    attachment = std::move(attachment_);
  }
  if (attachment != nullptr) attachment->Close(UnavailableError("the sender is shutting down"));
  parts_.store.Stop();
}

void ObjectServiceImpl::FillStatus(v1::ObjectsStatus& status) const {
  const ObjectStore::Counts counts = parts_.store.counts();
  const ObjectTraffic& traffic = parts_.traffic;
  const TimePoint now = parts_.clock.Now();
  status.set_attached(counts.attached);
  status.set_objects(counts.objects);
  status.set_held_bytes(counts.held_bytes);
  status.set_bytes_max(parts_.store.bytes_max());
  status.set_put_bytes(traffic.put_bytes());
  status.set_puts_refused(traffic.refused());
  status.set_sent_bytes(traffic.sent_bytes());
  status.set_received_bytes(traffic.received_bytes());
  status.set_waits(counts.waits);
  if (counts.last.has_value()) {
    status.set_rounds(counts.last->rounds);
    status.set_last_put(EscapeUnprintable(ToString(counts.last->key)));
    status.set_last_put_seconds(ToSeconds(now - counts.last->at));
  }
  if (const auto longest = traffic.longest(); longest.has_value()) {
    status.set_waits_for(fmt::format("{}{} of rank {}", longest->newer ? "a later one than " : "",
                                     EscapeUnprintable(ToString(longest->key)),
                                     longest->rank.value()));
    status.set_wait_seconds(ToSeconds(now - longest->since));
  }
}

dws::Status ObjectServiceImpl::CheckAttach(const v1::AttachObjectsRequest& request) const {
  if (request.job_id() != job_id_) {
    return FailedPreconditionError("this sender serves job '{}', the rank belongs to '{}'", job_id_,
                                   Short(request.job_id()));
  }
  if (request.trainer_rank() != parts_.store.rank().value()) {
    return FailedPreconditionError(
        "this sender is of trainer rank {}, the process says that it is "
        "rank {}",
        parts_.store.rank().value(), request.trainer_rank());
  }
  if (request.ranks() != parts_.owners.size()) {
    return FailedPreconditionError(
        "the process counts {} ranks, --train-peers of this sender names {}", request.ranks(),
        parts_.owners.size());
  }
  return OkStatus();
}

grpc::ServerWriteReactor<v1::ObjectsAttached>* ObjectServiceImpl::Attach(
    grpc::CallbackServerContext* context, const v1::AttachObjectsRequest* request) {
  if (const dws::Status wrong = CheckAttach(*request); !wrong.ok()) {
    const Attachment::Ptr refused =
        Attachment::Make(context, parts_.clock, [](const Attachment::Ptr&) {});
    refused->Close(wrong);
    return refused.get();
  }
  const std::optional<UnixPeer> peer = PeerOfCall(context->peer());
  const std::string name = peer.has_value() ? fmt::format("pid {}", peer->pid) : "its process";
  const uint64_t process = parts_.store.Attach(name);
  LogInfo("objects_attached", {{"process", name}});
  const Attachment::Ptr stream =
      Attachment::Make(context, parts_.clock, [this, process, name](const Attachment::Ptr&) {
        parts_.store.Detach(process);
        LogInfo("objects_detached", {{"process", name}});
      });
  v1::ObjectsAttached attached;
  attached.set_process(process);
  attached.set_bytes_max(parts_.store.bytes_max());
  stream->Offer(std::move(attached));
  Attachment::Ptr replaced = stream;
  dws::Status why = FailedPreconditionError("another process of the rank has attached");
  {
    MutexLock lock(mutex_);
    if (stopping_) {
      why = UnavailableError("the sender is shutting down");
    } else if (process > newest_) {
      newest_ = process;
      replaced = std::exchange(attachment_, stream);
    }
  }
  if (replaced != nullptr) replaced->Close(why);
  return stream.get();
}

grpc::ServerReadReactor<v1::PutObjectChunk>* ObjectServiceImpl::Put(
    grpc::CallbackServerContext* /*context*/, v1::PutObjectReply* /*reply*/) {
  return new PutCall(parts_);
}

grpc::ServerWriteReactor<v1::ObjectChunk>* ObjectServiceImpl::Fetch(
    grpc::CallbackServerContext* context, const v1::FetchObjectRequest* request) {
  const TrainerRank rank(request->trainer_rank());
  if (rank == parts_.store.rank()) return ObjectStream::Start(parts_.store, FromProto(*request));
  if (rank.value() >= parts_.owners.size()) {
    return ObjectStream::Refuse(ToGrpc(InvalidArgumentError(
        "an object of rank {}, expected a rank below {}", rank.value(), parts_.owners.size())));
  }
  return RelayObject(parts_.owners.owner(rank), *request, *context, parts_.traffic,
                     parts_.clock.Now());
}

grpc::ServerWriteReactor<v1::ObjectChunk>* PeerObjectServiceImpl::Fetch(
    grpc::CallbackServerContext* context, const v1::FetchPeerObjectRequest* request) {
  const auto refuse = [](const dws::Status& status) {
    return ObjectStream::Refuse(ToGrpc(status));
  };
  if (request->job_id() != job_id_) {
    return refuse(FailedPreconditionError("this sender serves job '{}', the other belongs to '{}'",
                                          job_id_, Short(request->job_id())));
  }
  if (request->wanted().trainer_rank() != store_.rank().value()) {
    return refuse(FailedPreconditionError("this sender is of trainer rank {}, expected {}",
                                          store_.rank().value(), request->wanted().trainer_rank()));
  }
  const uint32_t asks = request->trainer_rank();
  const dws::Status known =
      CheckPeer(PeerOf(context->auth_context().get()), SenderIdentity(job_id_, asks, Role::kTrain),
                fmt::format("the sender of trainer rank {}", asks));
  if (!known.ok()) return refuse(known);
  traffic_.OnReceived(request->ByteSizeLong());
  const bool exchanged =
      exchanged_ != nullptr && request->wanted().key().name().starts_with(kExchangedName);
  return ObjectStream::Start(exchanged ? *exchanged_ : store_, FromProto(request->wanted()),
                             &traffic_);
}

}  // namespace dws
