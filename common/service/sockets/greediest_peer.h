// Who gives way when there is no room for another client's unfinished business: one that takes much
// must not keep the others out.
#pragma once

#include <cstddef>
#include <optional>
#include <span>

#include "common/service/sockets/unix_socket.h"

namespace dws {

// Which of `oldest_first` gives way: the oldest of the process that has most of them, among those
// of the user who has most; nullopt: there are none. Pure.
std::optional<size_t> GreediestPeer(std::span<const UnixPeer> oldest_first);

}  // namespace dws
