#include "receiver_daemon/transfer/same_host/host_snapshot.h"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>
#include <vector>

#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/service/grpc/grpc_status.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/service/sockets/handle_socket.h"
#include "common/service/sockets/unix_socket.h"
#include "common/transport/same_host/host_id.h"

namespace dws {
namespace {

// How long to wait for the descriptor, which the sender passes at once. Short, because nothing else
// ends the wait.
constexpr std::chrono::milliseconds kPassTimeout{2000};

// Waits for one message of the sender, which has been sent the token.
Result<DescriptorMessage> Await(const UniqueFd& socket) {
  pollfd waiting{.fd = socket.get(), .events = POLLIN, .revents = 0};
  while (::poll(&waiting, 1, static_cast<int>(kPassTimeout.count())) > 0) {
    auto message = ReceiveDescriptorMessage(socket, limits::kErrorBytesMax);
    if (!message.ok()) {
      return UnavailableError("the sender's handle socket: {}", Message(message.status()));
    }
    if (message->has_value()) return **std::move(message);
  }
  return UnavailableError("the sender's handle socket does not answer");
}

// Takes the descriptor over the handle socket, if a trusted user listens there: digests detect
// faults, but not a forger.
Result<UniqueFd> Take(const std::string& path, const std::string& token,
                      const AllowedUsers& users) {
  if (token.size() != std::tuple_size_v<HandleToken>) {
    return DataLossError("a token of {} bytes, expected {}", token.size(),
                         std::tuple_size_v<HandleToken>);
  }
  const auto connected = ConnectUnix(path, SOCK_SEQPACKET);
  if (!connected.ok()) {
    return FailedPreconditionError("the sender's handle socket cannot be reached: {}",
                                   Message(connected.status()));
  }
  if (const Status trusted = users.CheckServer(connected->peer, path); !trusted.ok()) {
    return FailedPreconditionError("the sender's handle socket: {}", Message(trusted));
  }
  const UniqueFd& socket = connected->fd;
  std::array<std::byte, std::tuple_size_v<HandleToken> + sizeof(uint32_t)> payload = {};
  std::memcpy(payload.data(), token.data(), token.size());
  DWS_RETURN_IF_ERROR(SendDescriptorMessage(socket, payload, {}));
  DWS_ASSIGN_OR_RETURN(DescriptorMessage message, Await(socket));
  if (message.descriptors.size() == 1) return std::move(message.descriptors[0]);
  return FailedPreconditionError("the sender's handle socket {} answers '{}' with {} descriptors",
                                 path, EscapeUnprintable(AsText(message.payload)),
                                 message.descriptors.size());
}

}  // namespace

void HostSnapshot::Forget() {
  MutexLock lock(mutex_);
  mapped_ = nullptr;
  ++forgotten_;
}

Result<MappedSnapshot> HostSnapshot::Open(v1::SyncService::Stub& stub, ActiveCalls& calls,
                                          const PeerCheck& check_peer, const StreamId& stream,
                                          const RankLayout& layout) {
  const auto [mapped, forgotten] = Mapped(layout);
  v1::OpenSnapshotRequest request;
  *request.mutable_stream() = ToProto(stream);
  *request.mutable_layout_signature() = ToProto(layout.signature());
  request.set_host(HostId());
  if (mapped != nullptr) request.set_mapped(mapped->id());
  v1::OpenSnapshotReply reply;
  ActiveCalls::Call call(calls, limits::kRpcDeadline);
  DWS_RETURN_IF_ERROR(FromGrpc(stub.OpenSnapshot(call.context(), request, &reply)));
  DWS_RETURN_IF_ERROR(check_peer(*call.context()));
  if (mapped != nullptr && reply.snapshot() == mapped->id()) return mapped;
  DWS_ASSIGN_OR_RETURN(UniqueFd descriptor, Take(reply.handle_socket(), reply.token(), users_));
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
