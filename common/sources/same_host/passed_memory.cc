// The sender passes at once what it passes at all, so nothing else than a short time ends the wait.
#include "common/sources/same_host/passed_memory.h"

#include <poll.h>
#include <sys/socket.h>

#include <array>
#include <chrono>
#include <cstring>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/printable.h"
#include "common/model/limits.h"
#include "common/service/sockets/handle_socket.h"

namespace dws {
namespace {

constexpr std::chrono::milliseconds kPassTimeout{2000};

// Waits for one message of the sender, which has been sent the token.
Result<DescriptorMessage> Await(const UniqueFd& socket, size_t payload_bytes_max) {
  pollfd waiting{.fd = socket.get(), .events = POLLIN, .revents = 0};
  while (::poll(&waiting, 1, static_cast<int>(kPassTimeout.count())) > 0) {
    auto message = ReceiveDescriptorMessage(socket, payload_bytes_max);
    if (!message.ok()) {
      return UnavailableError("the sender's handle socket: {}", Message(message.status()));
    }
    if (message->has_value()) return **std::move(message);
  }
  return UnavailableError("the sender's handle socket does not answer");
}

}  // namespace

Result<PassedMemory> TakePassed(const std::string& path, const std::string& token,
                                const AllowedUsers& users, size_t payload_bytes_max) {
  if (token.size() != std::tuple_size_v<HandleToken>) {
    return DataLossError("a token of {} bytes, expected {}", token.size(),
                         std::tuple_size_v<HandleToken>);
  }
  auto connected = ConnectUnix(path, SOCK_SEQPACKET);
  if (!connected.ok()) {
    return FailedPreconditionError("the sender's handle socket cannot be reached: {}",
                                   Message(connected.status()));
  }
  if (const Status trusted = users.CheckServer(connected->peer, path); !trusted.ok()) {
    return FailedPreconditionError("the sender's handle socket: {}", Message(trusted));
  }
  std::array<std::byte, std::tuple_size_v<HandleToken> + sizeof(uint32_t)> payload = {};
  std::memcpy(payload.data(), token.data(), token.size());
  DWS_RETURN_IF_ERROR(SendDescriptorMessage(connected->fd, payload, {}));
  DWS_ASSIGN_OR_RETURN(DescriptorMessage message, Await(connected->fd, payload_bytes_max));
  return PassedMemory{.connection = std::move(connected->fd), .message = std::move(message)};
}

Result<UniqueFd> TakeDescriptor(const std::string& path, const std::string& token,
                                const AllowedUsers& users) {
  DWS_ASSIGN_OR_RETURN(PassedMemory passed, TakePassed(path, token, users, limits::kErrorBytesMax));
  DescriptorMessage& message = passed.message;
  if (message.descriptors.size() == 1) return std::move(message.descriptors[0]);
  return FailedPreconditionError("the sender's handle socket {} answers '{}' with {} descriptors",
                                 path, EscapeUnprintable(AsText(message.payload)),
                                 message.descriptors.size());
}

}  // namespace dws
