// The base URL of an HTTP server, parsed from a flag. Pure.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// The parts of a base URL.
struct HttpUrl {
  bool tls = false;
  std::string host;  // a name or an address, IPv6 without brackets
  uint16_t port = 0;
  std::string path;  // in front of every target; "" or "/prefix", never with a slash at its end

  // Returns whether only this machine can see the traffic.
  bool IsLoopback() const;
  bool IsAddress() const;          // needs no name service
  std::string HostPort() const;    // "[::1]:30000", for messages
  std::string HostHeader() const;  // the same, but without a port that is the scheme's
  std::string ToString() const;    // "http://127.0.0.1:30000/prefix"

  friend bool operator==(const HttpUrl&, const HttpUrl&) = default;
};

// Accepts URLs such as "http://127.0.0.1:30000", "https://[::1]" and
// "http://engine-3.pool:8000/prefix/". The default port is 80 or 443. Users, queries and fragments
// are refused. INVALID_ARGUMENT: anything else; the message quotes `text` unless it may contain a
// password or a signature.
Result<HttpUrl> ParseHttpUrl(std::string_view text);

// Escapes all bytes but letters, digits and "-._~", and with `keep_slashes` slashes.
std::string EscapeUrl(std::string_view text, bool keep_slashes);

}  // namespace dws
