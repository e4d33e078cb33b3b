// One message of the handle socket's wire (handle_socket.h): bytes with descriptors. Both sides:
// the daemon receives, clients written in C++ (tests, tools) send.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws {

struct DescriptorMessage {
  std::vector<std::byte> payload;
  std::vector<UniqueFd> descriptors;
};

// Receives one message without waiting; nullopt when there is none yet. Descriptors are
// close-on-exec and never leak, whatever the outcome. CANCELLED: the peer hung up (or sent an empty
// message, which looks the same). INVALID_ARGUMENT: more than `payload_bytes_max` or
// limits::kDescriptorsPerMessage.
Result<std::optional<DescriptorMessage>> ReceiveDescriptorMessage(const UniqueFd& socket,
                                                                  size_t payload_bytes_max);

// Sends one message, waiting while the socket is full. `descriptors` stay the caller's.
// UNAVAILABLE: the peer is gone; it may have left a reply to be read.
Status SendDescriptorMessage(const UniqueFd& socket, ByteSpan payload,
                             std::span<const int> descriptors);

}  // namespace dws
