// Parses "host:port" of a listening flag, and checks whether other machines can reach the address.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// The value of a listening flag.
struct ListenAddress {
  std::string host;  // an IPv4 or IPv6 address without brackets, or "localhost"
  uint16_t port = 0;

  bool IsLoopback() const;
  std::string ToString() const;  // IPv6 in brackets

  friend bool operator==(const ListenAddress&, const ListenAddress&) = default;
};

// Accepts forms such as "127.0.0.1:7700", "[::1]:0", "0.0.0.0:80" and "localhost:0".
// INVALID_ARGUMENT: anything else; the message quotes `text`.
Result<ListenAddress> ParseListenAddress(std::string_view text);

// For pages served without TLS. FAILED_PRECONDITION, saying what to do, when other machines could
// reach `address` and `insecure` is not set.
Status CheckExposure(const ListenAddress& address, std::string_view flag, bool insecure);

// For gRPC without TLS. FAILED_PRECONDITION, saying what to do, unless `insecure` is set. This
// includes loopback: every user of the machine can reach it, and plain TCP does not identify users.
Status CheckPlainListener(const ListenAddress& address, bool insecure);

}  // namespace dws
