#include "sender_daemon/on_demand/minibatch/piece_puller.h"

#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/proto_convert/train_convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/sources/same_host/passed_memory.h"
#include "sender_daemon/on_demand/gather/limits.h"

namespace dws {

PiecePuller::PiecePuller(OwnerLinks& links)
    : links_(links), pulls_(limits::kPullsAtOnce, limits::kPullsWaitingMax) {}

bool PiecePuller::Pull(const PieceToPull& pull, Done done) {
  return pulls_.Post([this, pull, done = std::move(done)] { done(Bring(pull)); });
}

Result<PiecePuller::Bytes> PiecePuller::Bring(const PieceToPull& pull) {
  const std::shared_ptr<const OutboxMemory> memory = Map(pull);
  if (memory == nullptr) return Fetch(pull);
  DWS_ASSIGN_OR_RETURN(const ByteSpan bytes, memory->Bytes(pull.offset_bytes, pull.size_bytes));
  return Bytes{.mapped = true, .piece = {.dtype = pull.dtype, .bytes = bytes, .keeper = memory}};
}

std::shared_ptr<const OutboxMemory> PiecePuller::Map(const PieceToPull& pull) {
  {
    MutexLock lock(mutex_);
    const Mapped& known = mapped_[pull.from];
    if (known.id == pull.outbox) return known.memory;
  }
  Mapped mapped{.id = pull.outbox};
  Result<OutboxMemory> opened = Open(pull);
  if (opened.ok()) {
    mapped.memory = std::make_shared<const OutboxMemory>(*std::move(opened));
  } else {
    LogInfo("outbox_not_mapped",
            {{"trainer_rank", pull.from.value()}, {"reason", Message(opened.status())}});
  }
  MutexLock lock(mutex_);
  // Another failure than being elsewhere may not last.
  if (opened.ok() || absl::IsFailedPrecondition(opened.status())) mapped_[pull.from] = mapped;
  return mapped.memory;
}

Result<OutboxMemory> PiecePuller::Open(const PieceToPull& pull) {
  OwnerLink& link = links_.owner(pull.from);
  v1::OpenOutboxRequest request;
  *request.mutable_stream() = ToProto(pull.stream);
  request.set_outbox(pull.outbox);
  request.set_host(link.options().host_id);
  v1::OpenOutboxReply reply;
  ActiveCalls::Call call(link.calls(), limits::kRpcDeadline);
  DWS_RETURN_IF_ERROR(FromGrpc(
      v1::TrainService::NewStub(link.channel())->OpenOutbox(call.context(), request, &reply)));
  DWS_RETURN_IF_ERROR(link.CheckPeer(*call.context()));
  DWS_ASSIGN_OR_RETURN(
      UniqueFd fd, TakeDescriptor(reply.handle_socket(), reply.token(), link.options().tls.users));
  DWS_ASSIGN_OR_RETURN(HostRegion region,
                       HostRegion::Map(std::move(fd), reply.size_bytes(), Access::kReadOnly));
  return OutboxMemory::Open(std::move(region));
}

Result<PiecePuller::Bytes> PiecePuller::Fetch(const PieceToPull& pull) {
  OwnerLink& link = links_.owner(pull.from);
  v1::FetchPieceRequest request;
  *request.mutable_stream() = ToProto(pull.stream);
  request.set_trainer_rank(link.options().self.value());
  *request.mutable_attempt() = ToProto(pull.offer.attempt);
  request.set_number(pull.offer.number.value());
  if (pull.combined_for.has_value()) request.set_combined_for(pull.combined_for->value());
  ActiveCalls::Call call(link.calls(), limits::kPieceDeadline);
  const auto stub = v1::TrainService::NewStub(link.channel());
  const auto reader = stub->FetchPiece(call.context(), request);
  const auto bytes = std::make_shared<std::vector<std::byte>>();
  bytes->reserve(pull.size_bytes);
  v1::PieceChunk chunk;
  Digest told;
  bool first = true;
  while (reader->Read(&chunk)) {
    if (std::exchange(first, false)) {
      DWS_RETURN_IF_ERROR(link.CheckPeer(*call.context()));
      told = FromProto(chunk.digest());
      DWS_ASSIGN_OR_RETURN(const DType dtype, FromProto(chunk.dtype()));
      if (dtype != pull.dtype || chunk.size_bytes() != pull.size_bytes) {
        return DataLossError("a piece of {} bytes of {}, offered as {} bytes of {}",
                             chunk.size_bytes(), ToString(dtype), pull.size_bytes,
                             ToString(pull.dtype));
      }
    }
    if (chunk.data().size() > pull.size_bytes - bytes->size()) {
      return DataLossError("a piece has more than its {} bytes", pull.size_bytes);
    }
    const ByteSpan data = AsBytes(chunk.data());
    bytes->insert(bytes->end(), data.begin(), data.end());
  }
  DWS_RETURN_IF_ERROR(FromGrpc(reader->Finish()));
  if (bytes->size() != pull.size_bytes || DigestBytes(*bytes, 0) != told) {
    return DataLossError("piece {} of {} has arrived damaged", pull.offer.number.value(),
                         ToString(pull.offer.attempt));
  }
  return Bytes{.mapped = false, .piece = {.dtype = pull.dtype, .bytes = *bytes, .keeper = bytes}};
}

}  // namespace dws
