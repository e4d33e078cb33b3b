// Keeps gRPC's callback threads for the life of the process, and turns gRPC's log lines into our
// log events.
//
// gRPC 1.51 shares one completion queue among all users of its callback API and destroys it with
// the last user. An operation that ends at that moment sometimes aborts the process
// ("ref_counted.h: prior > 0"). One user that is never destroyed avoids that moment. It is the only
// object in DWS that is leaked on purpose.
#pragma once

namespace dws {

// Call this before making a server or a channel. Idempotent. Threads: safe from any.
void KeepGrpcRunning();

}  // namespace dws
