// Takes memory that a sender of this host passes over its handle socket.
#pragma once

#include <cstddef>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {

struct PassedMemory {
  UniqueFd connection;  // some loans last as long as it
  DescriptorMessage message;
};

// Sends `token`, and takes one message of at most `payload_bytes_max` bytes, if a user of `users`
// listens at `path`: digests detect faults, but not a forger. FAILED_PRECONDITION: the socket
// cannot be reached, or is not trusted. UNAVAILABLE: no message came. DATA_LOSS: that is no token.
Result<PassedMemory> TakePassed(const std::string& path, const std::string& token,
                                const AllowedUsers& users, size_t payload_bytes_max);

// Like TakePassed, but takes one descriptor. FAILED_PRECONDITION: another number of them came.
Result<UniqueFd> TakeDescriptor(const std::string& path, const std::string& token,
                                const AllowedUsers& users);

}  // namespace dws
