// One FetchFull call: reads what comes straight to where it belongs.
#pragma once

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>

#include <functional>
#include <memory>

#include "common/base/status.h"
#include "common/spool/full_assembly.h"
#include "proto/sync.pb.h"

namespace dws {

// How a call ended: `local` is what was wrong with what came, or with taking it; `remote` what the
// sender, or the connection, said.
struct FullCallEnd {
  Status local;
  Status remote;
};

// Blocks until the call ends. `check_peer` is asked once something has arrived, before it is used.
FullCallEnd CallFetchFull(const std::shared_ptr<grpc::Channel>& channel,
                          grpc::ClientContext& context, const v1::FetchFullRequest& request,
                          const std::function<Status()>& check_peer, FullAssembly& assembly);

}  // namespace dws
