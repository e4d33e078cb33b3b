// One message of the handle socket's protocol (handle_socket.h): bytes with descriptors. The daemon
// receives such messages; clients written in C++ (tests, tools) send them.
#pragma once

#include <cstddef>
#include <optional>
#include <span>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws {

// A packet of a unix socket with the descriptors it carried.
struct DescriptorMessage {
  std::vector<std::byte> payload;
  std::vector<UniqueFd> descriptors;
};

// Receives one message without waiting; nullopt when there is none yet. Descriptors are
// close-on-exec and never leak, whatever the outcome. CANCELLED: the peer hung up (or sent an empty
// message, which looks the same). INVALID_ARGUMENT: more bytes than `payload_bytes_max` or more
// descriptors than limits::kDescriptorsPerMessage.
Result<std::optional<DescriptorMessage>> ReceiveDescriptorMessage(const UniqueFd& socket,
                                                                  size_t payload_bytes_max);

// Sends one message, waiting while the socket is full. The caller keeps ownership of `descriptors`.
// UNAVAILABLE: the peer is gone; a reply that it sent earlier may still be readable.
Status SendDescriptorMessage(const UniqueFd& socket, ByteSpan payload,
                             std::span<const int> descriptors);

}  // namespace dws
