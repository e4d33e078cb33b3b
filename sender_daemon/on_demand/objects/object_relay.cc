// Two calls in lock-step: a chunk is read from the other sender, written to the rank, and only then
// the next one is read, so a chunk is all that is held. The call to the other sender has a hold
// while another read may follow; it is done when there is none, and then ends the rank's call.
#include "sender_daemon/on_demand/objects/object_relay.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <memory>
#include <utility>

#include "common/base/utf8.h"
#include "common/service/grpc/grpc_status.h"
#include "sender_daemon/on_demand/objects/object_chunks.h"
#include "sender_daemon/on_demand/objects/object_store.h"
#include "sender_daemon/on_demand/objects/object_stream.h"

namespace dws {
namespace {

constexpr std::chrono::hours kFetchDeadlineMax{24};

Duration Left(const grpc::CallbackServerContext& context) {
  const auto left = context.deadline() - std::chrono::system_clock::now();
  return std::clamp<Duration>(std::chrono::duration_cast<Duration>(left), Duration::zero(),
                              kFetchDeadlineMax);
}

grpc::Status Refused(const OwnerLink& link, const Status& reason) {
  return RefusedBecauseOf(
      link.options().owner,
      MakeStatus(reason.code(), fmt::format("the sender of {}: {}", link.name(), Message(reason))));
}

class Relay;

// The call to the other sender. Lifecycle: the relay's; it is done before the relay finishes.
class Reader final : public grpc::ClientReadReactor<v1::ObjectChunk> {
 public:
  explicit Reader(Relay& relay) : relay_(relay) {}
  void OnReadDone(bool ok) override;
  void OnDone(const grpc::Status& status) override;

 private:
  Relay& relay_;
};

class Relay final : public grpc::ServerWriteReactor<v1::ObjectChunk> {
 public:
  Relay(OwnerLink& link, const v1::FetchObjectRequest& request, Duration timeout,
        ObjectTraffic& traffic)
      : link_(link),
        traffic_(traffic),
        chunks_(request.size_bytes_max()),
        stub_(v1::PeerObjectService::NewStub(link.channel())),
        call_(std::make_unique<ActiveCalls::Call>(link.calls(), timeout)) {
    request_.set_job_id(link.options().job_id);
    request_.set_trainer_rank(link.options().self.value());
    *request_.mutable_wanted() = request;
  }

  void Start(TimePoint now) {
    const v1::FetchObjectRequest& wanted = request_.wanted();
    const std::string_view name = Utf8Prefix(wanted.key().name(), limits::kObjectNameBytesMax);
    wait_ = traffic_.BeginWait({.rank = link_.options().owner,
                                .key = {.name = std::string(name), .number = wanted.key().number()},
                                .newer = wanted.newer(),
                                .since = now});
    traffic_.OnSent(request_.ByteSizeLong());
    stub_->async()->Fetch(call_->context(), &request_, &reader_);
    reader_.AddHold();
    reader_.StartRead(&chunk_);
    reader_.StartCall();
  }

  void OnChunk(bool ok) {
    if (!ok) return reader_.RemoveHold();
    traffic_.EndWait(wait_);
    traffic_.OnReceived(chunk_.ByteSizeLong());
    if (const Status status = Check(); !status.ok()) {
      wrong_ = status;
      call_->context()->TryCancel();
      return reader_.RemoveHold();
    }
    StartWrite(&chunk_);
  }

  void OnWriteDone(bool ok) override {
    if (ok) return reader_.StartRead(&chunk_);
    call_->context()->TryCancel();
    reader_.RemoveHold();
  }

  // gRPC may tell this while the call to the other sender ends: the lock keeps its context. That
  // cannot deadlock: gRPC runs reactions on its own threads.
  void OnCancel() override {
    MutexLock lock(mutex_);
    if (call_ != nullptr) call_->context()->TryCancel();
  }

  void OnEnd(const grpc::Status& status) {
    traffic_.EndWait(wait_);
    {
      MutexLock lock(mutex_);
      call_.reset();  // before the link ends
    }
    Finish(Outcome(status));
  }
  void OnDone() override { delete this; }

 private:
  Status Check() {
    if (chunks_.first()) DWS_RETURN_IF_ERROR(link_.CheckPeer(*call_->context()));
    return chunks_.Add(chunk_);
  }

  grpc::Status Outcome(const grpc::Status& status) const {
    const TrainerRank rank = link_.options().owner;
    if (!wrong_.ok()) return Refused(link_, wrong_);
    if (const Status whole = chunks_.Finish(); status.ok() && !whole.ok()) {
      return Refused(link_, whole);
    }
    if (status.ok()) return status;
    v1::ObjectRefusal refusal;
    const bool told = refusal.ParseFromString(status.error_details()) &&
                      refusal.has_trainer_rank() && refusal.trainer_rank() == rank.value();
    const Status reason = FromGrpc(status);
    if (told) return RefusedBecauseOf(rank, reason);
    // By this side, because the other sender is silent, or by the other one, which stops.
    if (absl::IsCancelled(reason)) return Refused(link_, UnavailableError("{}", Message(reason)));
    return Refused(link_, reason);
  }

  OwnerLink& link_;
  ObjectTraffic& traffic_;
  uint64_t wait_ = 0;
  ObjectChunks chunks_;
  const std::unique_ptr<v1::PeerObjectService::Stub> stub_;
  v1::FetchPeerObjectRequest request_;
  Mutex mutex_;
  std::unique_ptr<ActiveCalls::Call> call_;  // written only by OnEnd, under the lock
  Reader reader_{*this};
  v1::ObjectChunk chunk_;  // read and written in turns
  Status wrong_;           // why the other sender's answer is refused
};

void Reader::OnReadDone(bool ok) { relay_.OnChunk(ok); }
void Reader::OnDone(const grpc::Status& status) { relay_.OnEnd(status); }

}  // namespace

grpc::ServerWriteReactor<v1::ObjectChunk>* RelayObject(OwnerLink& link,
                                                       const v1::FetchObjectRequest& request,
                                                       const grpc::CallbackServerContext& context,
                                                       ObjectTraffic& traffic, TimePoint now) {
  if (const Status connected = link.connected(); !connected.ok()) {
    return ObjectStream::Refuse(Refused(link, connected));
  }
  auto* const relay = new Relay(link, request, Left(context), traffic);
  relay->Start(now);
  return relay;
}

}  // namespace dws
