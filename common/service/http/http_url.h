// Where an HTTP server is: the base URL of a flag, as values. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

struct HttpUrl {
  bool tls = false;
  std::string host;  // a name or an address, IPv6 without brackets
  uint16_t port = 0;
  std::string path;  // in front of every target; "" or "/prefix", never with a slash at its end

  // Whether only this machine can listen in.
  bool IsLoopback() const;
  bool IsAddress() const;        // needs no name service
  std::string HostPort() const;  // "[::1]:30000": as the Host header and messages have it
  std::string ToString() const;  // "http://127.0.0.1:30000/prefix"

  friend bool operator==(const HttpUrl&, const HttpUrl&) = default;
};

// INVALID_ARGUMENT, quoting `text` without what may be a password, unless it is as
// "http://127.0.0.1:30000", "https://[::1]", "http://engine-3.pool:8000/prefix/". The port is 80 or
// 443 where none is given. Users, queries and fragments are refused.
Result<HttpUrl> ParseHttpUrl(std::string_view text);

}  // namespace dws
