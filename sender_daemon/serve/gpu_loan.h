// Lends the copies of a snapshot in GPU memory to a receiver of this host.
#pragma once

#include <optional>

#include "common/base/status.h"
#include "common/service/sockets/handle_socket.h"
#include "proto/sync.pb.h"
#include "sender_daemon/publish/rank_state.h"

namespace dws {

// Answers OpenGpuCopies, for the rank that `state` is of. `peer`: the process that asks, if it asks
// over the unix socket. A copy that is lent stays allocated until the receiver's connection to
// `handles` ends, whatever becomes of the trainer; captures go on changing it. Calls the driver.
// Errors: as OpenGpuCopies in sync.proto; UNIMPLEMENTED: the memory cannot be shared; INTERNAL: the
// driver's error.
Status LendGpuCopies(const RankState& state, HandleSocket& handles,
                     const std::optional<UnixPeer>& peer, const v1::OpenGpuCopiesRequest& request,
                     v1::OpenGpuCopiesReply& reply);

}  // namespace dws
