// A Fetch of another rank's object: asks that rank's sender, and passes chunks on one by one.
#pragma once

#include <grpcpp/support/server_callback.h>

#include "common/base/clock.h"
#include "proto/objects.grpc.pb.h"
#include "sender_daemon/on_demand/gather/owner_link.h"
#include "sender_daemon/on_demand/objects/object_traffic.h"

namespace dws {

// Starts the call, which ends with the one that `context` belongs to. Its chunks are checked
// against their digest; one that comes too late is followed by DATA_LOSS. `link` and `traffic`
// outlive the call.
grpc::ServerWriteReactor<v1::ObjectChunk>* RelayObject(OwnerLink& link,
                                                       const v1::FetchObjectRequest& request,
                                                       const grpc::CallbackServerContext& context,
                                                       ObjectTraffic& traffic, TimePoint now);

}  // namespace dws
