// The address of another daemon, as in flags: HOST:PORT, or unix:/PATH on the same host.
#pragma once

#include <optional>
#include <string>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// The path of unix:/PATH; nullopt: another kind of address.
std::optional<std::string> UnixPathOf(std::string_view address);

// Returns whether `address` is a unix socket or a loopback address: the peer runs on this host.
bool IsOnThisHost(std::string_view address);

// INVALID_ARGUMENT, quoting `address`, unless it is a host's name, an IPv4 address or an IPv6
// address in brackets, with a port that is not 0, or "unix:" and an absolute path that fits a
// socket address. `what` names the peer: "a sender".
Status CheckPeerAddress(std::string_view address, std::string_view what);

// FAILED_PRECONDITION: `peer` is on the network, and this daemon has no TLS. `harm` is what another
// program that listens at the peer's address can do: "give this engine weights".
Status PlainPeerError(std::string_view peer, std::string_view harm);

}  // namespace dws
