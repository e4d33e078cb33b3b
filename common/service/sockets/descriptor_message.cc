#include "common/service/sockets/descriptor_message.h"

#include <sys/socket.h>
#include <sys/uio.h>

#include <array>
#include <cerrno>
#include <cstring>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

using ControlBuffer =
    std::array<std::byte, CMSG_SPACE(limits::kDescriptorsPerMessage * sizeof(int))>;

// Takes ownership of all received descriptors first, so that every later return closes them.
std::vector<UniqueFd> TakeDescriptors(msghdr& message) {
  std::vector<UniqueFd> descriptors;
  for (cmsghdr* part = CMSG_FIRSTHDR(&message); part != nullptr;
       part = CMSG_NXTHDR(&message, part)) {
    if (part->cmsg_level != SOL_SOCKET || part->cmsg_type != SCM_RIGHTS) continue;
    const size_t count = (part->cmsg_len - CMSG_LEN(0)) / sizeof(int);
    const auto* at = reinterpret_cast<const std::byte*>(CMSG_DATA(part));
    for (size_t i = 0; i < count; ++i) {
      descriptors.emplace_back(LoadLe<int>(at + i * sizeof(int)));
    }
  }
  return descriptors;
}

}  // namespace

Result<std::optional<DescriptorMessage>> ReceiveDescriptorMessage(const UniqueFd& socket,
                                                                  size_t payload_bytes_max) {
  DescriptorMessage received;
  received.payload.resize(payload_bytes_max);
  alignas(cmsghdr) ControlBuffer control;
  iovec part = {.iov_base = received.payload.data(), .iov_len = received.payload.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  message.msg_control = control.data();
  message.msg_controllen = control.size();

  ssize_t size;
  do {
    size = ::recvmsg(socket.get(), &message, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
  } while (size < 0 && errno == EINTR);
  if (size < 0 && (errno == EAGAIN || errno == EWOULDBLOCK)) return std::nullopt;
  if (size < 0 && errno != ECONNRESET) return ErrnoError(errno, "cannot receive from a client");
  if (size < 0) return CancelledError("the client disconnected");
  received.descriptors = TakeDescriptors(message);
  if (size == 0) return CancelledError("the client disconnected");
  if ((message.msg_flags & MSG_TRUNC) != 0) {
    return InvalidArgumentError("expected a message of at most {} bytes, found a longer one",
                                payload_bytes_max);
  }
  if ((message.msg_flags & MSG_CTRUNC) != 0) {
    return InvalidArgumentError(
        "expected at most {} descriptors in one message, found more (or this process has no free "
        "descriptor, see LimitNOFILE)",
        limits::kDescriptorsPerMessage);
  }
  received.payload.resize(static_cast<size_t>(size));
  return received;
}

Status SendDescriptorMessage(const UniqueFd& socket, ByteSpan payload,
                             std::span<const int> descriptors) {
  DWS_CHECK(!payload.empty() && descriptors.size() <= limits::kDescriptorsPerMessage);
  alignas(cmsghdr) ControlBuffer control = {};
  iovec part = {.iov_base = const_cast<std::byte*>(payload.data()), .iov_len = payload.size()};
  msghdr message = {};
  message.msg_iov = &part;
  message.msg_iovlen = 1;
  if (!descriptors.empty()) {
    message.msg_control = control.data();
    message.msg_controllen = CMSG_SPACE(descriptors.size_bytes());
    cmsghdr* const rights = CMSG_FIRSTHDR(&message);
    rights->cmsg_level = SOL_SOCKET;
    rights->cmsg_type = SCM_RIGHTS;
    rights->cmsg_len = CMSG_LEN(descriptors.size_bytes());
    std::memcpy(CMSG_DATA(rights), descriptors.data(), descriptors.size_bytes());
  }
  ssize_t sent;
  do {
    sent = ::sendmsg(socket.get(), &message, MSG_NOSIGNAL);
  } while (sent < 0 && errno == EINTR);
  if (sent < 0) return ErrnoError(errno, "cannot send to the handle socket");
  return OkStatus();
}

}  // namespace dws
