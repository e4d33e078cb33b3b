#include "common/service/peers/peer_address.h"

#include <arpa/inet.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>

#include "common/base/printable.h"
#include "common/service/listen_address.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {
namespace {

constexpr std::string_view kUnixPrefix = "unix:";

constexpr size_t kHostBytesMax = 253;  // of a name in DNS

// A name or an address that can be dialled: gRPC would take schemes, and dial what it makes of the
// rest.
bool IsHost(std::string_view host) {
  if (host.empty() || host.size() > kHostBytesMax) return false;
  if (host.front() == '[') {
    in6_addr v6 = {};
    const std::string number(host.substr(1, host.size() - 1 - (host.back() == ']' ? 1 : 0)));
    return host.back() == ']' && ::inet_pton(AF_INET6, number.c_str(), &v6) == 1 &&
           !IN6_IS_ADDR_UNSPECIFIED(&v6);
  }
  return host != "0.0.0.0" && std::ranges::all_of(host, [](char c) {
           return std::isalnum(static_cast<unsigned char>(c)) != 0 || c == '.' || c == '-' ||
                  c == '_';
         });
}

bool HasHostAndPort(std::string_view address) {
  const size_t colon = address.rfind(':');
  if (colon == std::string_view::npos || !IsHost(address.substr(0, colon))) return false;
  const std::string_view text = address.substr(colon + 1);
  uint16_t port = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), port);
  return error == std::errc() && end == text.data() + text.size() && port > 0;
}

// A relative path would name another file after a change of folder. An abstract socket name (not a
// file) has neither an owner nor a mode.
bool IsSocketPath(std::string_view path) {
  return path.starts_with('/') && path.size() <= kSocketPathBytesMax &&
         path.find('\0') == std::string_view::npos;
}

}  // namespace

std::optional<std::string> UnixPathOf(std::string_view address) {
  if (!address.starts_with(kUnixPrefix)) return std::nullopt;
  return std::string(address.substr(kUnixPrefix.size()));
}

bool IsOnThisHost(std::string_view address) {
  if (UnixPathOf(address).has_value()) return true;
  const Result<ListenAddress> numeric = ParseListenAddress(address);  // a name is no such address
  return numeric.ok() && numeric->IsLoopback();
}

Status CheckPeerAddress(std::string_view address, std::string_view what) {
  if (const std::optional<std::string> path = UnixPathOf(address); path.has_value()) {
    if (IsSocketPath(*path)) return OkStatus();
    return InvalidArgumentError(
        "expected unix: and the absolute path of {}'s --socket, of at most {} bytes, found '{}'",
        what, kSocketPathBytesMax, EscapeUnprintable(address));
  }
  if (HasHostAndPort(address)) return OkStatus();
  return InvalidArgumentError("expected HOST:PORT of {}, or unix:/PATH on this host, found '{}'",
                              what, EscapeUnprintable(address));
}

Status PlainPeerError(std::string_view peer, std::string_view harm) {
  return FailedPreconditionError(
      "{} without TLS: another program that listens there can {}. On one host give unix: and the "
      "daemon's --socket, else --tls-ca, --tls-cert and --tls-key (`dws-certificates` makes them), "
      "or --insecure if every user and the network are trusted",
      peer, harm);
}

}  // namespace dws
