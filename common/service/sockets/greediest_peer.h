// Chooses which client loses its place when there is no room for another unfinished client. A
// client that holds many places must not keep others out.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "common/service/sockets/unix_socket.h"

namespace dws {

// The index in `oldest_first` of the peer that gives way: the oldest one of the process with most
// entries, among the processes of the user with most entries. nullopt: the list is empty. Pure.
std::optional<size_t> GreediestPeer(std::span<const UnixPeer> oldest_first);

}  // namespace dws
