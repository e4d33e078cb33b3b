// "host:port" of a listening flag, and the rule for addresses that others can reach.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

struct ListenAddress {
  std::string host;  // an IPv4 or IPv6 address without brackets, or "localhost"
  uint16_t port = 0;

  bool IsLoopback() const;
  std::string ToString() const;  // IPv6 in brackets

  friend bool operator==(const ListenAddress&, const ListenAddress&) = default;
};

// INVALID_ARGUMENT, quoting `text`, unless it is "127.0.0.1:7700", "[::1]:0", "0.0.0.0:80",
// "localhost:0".
Result<ListenAddress> ParseListenAddress(std::string_view text);

// For pages that are served without TLS: FAILED_PRECONDITION, saying what to do, when other
// machines could reach `address` and `insecure` is not set.
Status CheckExposure(const ListenAddress& address, std::string_view flag, bool insecure);

// For gRPC without TLS: FAILED_PRECONDITION, saying what to do, unless `insecure` is set. On
// loopback too: every user of the machine reaches that, and plain TCP tells nobody from another.
Status CheckPlainListener(const ListenAddress& address, bool insecure);

}  // namespace dws
