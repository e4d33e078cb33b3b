// Keeps gRPC's callback threads for the life of the process, and makes events of what it logs.
//
// gRPC 1.51 shares one completion queue among all users of its callback API and takes it down with
// the last of them; an operation that ends at that moment sometimes aborts the process
// ("ref_counted.h: prior > 0"). One user that is never destroyed avoids that moment. It is the only
// thing in DWS that is leaked on purpose.
#pragma once

namespace dws {

// Whoever makes a server or a channel calls this first. Again: nothing. Threads: safe from any.
void KeepGrpcRunning();

}  // namespace dws
