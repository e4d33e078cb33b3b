#include "common/service/listen_address.h"

#include <arpa/inet.h>

#include <charconv>

namespace dws {
namespace {

bool IsV4(const std::string& host) {
  in_addr address = {};
  return ::inet_pton(AF_INET, host.c_str(), &address) == 1;
}

}  // namespace

Result<ListenAddress> ParseListenAddress(std::string_view text) {
  const auto refuse = [text] {
    return InvalidArgumentError(
        "expected an address to listen on, as 127.0.0.1:7700, [::1]:0 or 0.0.0.0:80, found \"{}\"",
        text);
  };
  const size_t colon = text.rfind(':');
  if (colon == std::string_view::npos) return refuse();
  std::string_view host = text.substr(0, colon);
  const std::string_view port = text.substr(colon + 1);
  const bool bracketed = host.size() > 2 && host.front() == '[' && host.back() == ']';
  if (bracketed) host = host.substr(1, host.size() - 2);

  ListenAddress address{.host = std::string(host), .port = 0};
  const auto [end, error] = std::from_chars(port.data(), port.data() + port.size(), address.port);
  if (error != std::errc() || end != port.data() + port.size()) return refuse();

  // Names except "localhost" are refused: which interface a daemon opens must not depend on a name
  // service.
  in6_addr v6 = {};
  const bool valid = bracketed ? ::inet_pton(AF_INET6, address.host.c_str(), &v6) == 1
                               : host == "localhost" || IsV4(address.host);
  if (!valid) return refuse();
  return address;
}

bool ListenAddress::IsLoopback() const {
  // A name may begin as an address does.
  return host == "localhost" || host == "::1" || (IsV4(host) && host.starts_with("127."));
}

std::string ListenAddress::ToString() const {
  const bool v6 = host.find(':') != std::string::npos;
  return v6 ? fmt::format("[{}]:{}", host, port) : fmt::format("{}:{}", host, port);
}

Status CheckExposure(const ListenAddress& address, std::string_view flag, bool insecure) {
  if (insecure || address.IsLoopback()) return OkStatus();
  return FailedPreconditionError(
      "{} {} can be reached by others: give --tls-ca, --tls-cert and --tls-key, or listen on "
      "127.0.0.1, or give --insecure if the network is trusted",
      flag, address.ToString());
}

Status CheckPlainListener(const ListenAddress& address, bool insecure) {
  if (insecure) return OkStatus();
  return FailedPreconditionError(
      "--listen {} without TLS lets everybody who reaches it read the weights and act as "
      "receivers, other users of this machine included: give --tls-ca, --tls-cert and --tls-key "
      "(`dws-certificates` makes them), or --insecure if all of them are trusted; daemons of "
      "one host need no --listen, they connect to --socket",
      address.ToString());
}

}  // namespace dws
