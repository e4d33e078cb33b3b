// One FetchFull call: reads each frame straight to its place.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>

#include "common/base/status.h"
#include "common/spool/full_assembly.h"
#include "proto/sync.pb.h"

namespace dws {

// How a call ended: `local` says what was wrong with the data, or with taking it; `remote` is the
// status of the sender or the connection.
struct FullCallEnd {
  Status local;
  Status remote;
};

// Blocks until the call ends. Calls `check_peer` once the first message has arrived, before using
// it.
FullCallEnd CallFetchFull(const std::shared_ptr<grpc::Channel>& channel,
                          grpc::ClientContext& context, const v1::FetchFullRequest& request,
                          const std::function<Status()>& check_peer, FullAssembly& assembly);

}  // namespace dws
