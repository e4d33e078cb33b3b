// Calls overlap, so a snapshot that was forgotten meanwhile is not kept.
#include "common/sources/same_host/host_snapshot.h"

#include <utility>

#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/sockets/unix_socket.h"
#include "common/sources/same_host/passed_memory.h"

namespace dws {

void HostSnapshot::Forget() {
  MutexLock lock(mutex_);
  mapped_ = nullptr;
  ++forgotten_;
}

Result<MappedSnapshot> HostSnapshot::Open(v1::SyncService::Stub& stub, ActiveCalls& calls,
                                          const PeerCheck& check_peer, const StreamId& stream,
                                          const RankLayout& layout) {
  const auto [mapped, forgotten] = Mapped(layout);
  if (mapped != nullptr && !options_.asks_again) return mapped;
  v1::OpenSnapshotRequest request;
  *request.mutable_stream() = ToProto(stream);
  *request.mutable_layout_signature() = ToProto(layout.signature());
  request.set_host(options_.host_id);
  if (mapped != nullptr) request.set_mapped(mapped->id());
  v1::OpenSnapshotReply reply;
  ActiveCalls::Call call(calls, limits::kRpcDeadline);
  DWS_RETURN_IF_ERROR(FromGrpc(stub.OpenSnapshot(call.context(), request, &reply)));
  DWS_RETURN_IF_ERROR(check_peer(*call.context()));
  if (mapped != nullptr && reply.snapshot() == mapped->id()) return mapped;
  DWS_ASSIGN_OR_RETURN(UniqueFd descriptor,
                       TakeDescriptor(reply.handle_socket(), reply.token(), options_.users));
  DWS_ASSIGN_OR_RETURN(MappedSnapshot opened, SnapshotMemory::Map(std::move(descriptor), layout));
  if (opened->id() != reply.snapshot()) {
    return FailedPreconditionError("the handle socket {} passed another snapshot than the sender's",
                                   reply.handle_socket());
  }
  MutexLock lock(mutex_);
  if (forgotten_ != forgotten) return opened;  // for this transfer only
  mapped_ = opened;
  layout_ = layout.signature();
  return opened;
}

std::pair<MappedSnapshot, uint64_t> HostSnapshot::Mapped(const RankLayout& layout) {
  MutexLock lock(mutex_);
  return {layout_ == layout.signature() ? mapped_ : nullptr, forgotten_};
}

}  // namespace dws
