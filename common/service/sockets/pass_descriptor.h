// Passes one descriptor to a client over the handle socket.
#pragma once

#include <functional>
#include <optional>
#include <string_view>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/service/sockets/handle_socket.h"

namespace dws {

// Returns the token that the client sends. `make` makes the descriptor when it does, on the
// socket's thread; `payload` comes with it. The connection has served its purpose then, and ends:
// it would take the place of a trainer's. `peer`: the process that asked, if it asked over the unix
// socket. `handles` outlives the client's connection. Errors: those of HandleSocket::Expect.
Result<HandleToken> PassDescriptor(HandleSocket& handles, const std::optional<UnixPeer>& peer,
                                   std::string_view payload,
                                   std::function<Result<UniqueFd>()> make);

}  // namespace dws
