// The handle socket: a SOCK_SEQPACKET unix socket beside the gRPC one. A client passes the
// descriptors of its memory to a daemon over it, and its hang-up tells each side that the other
// side has ended.
//
// The protocol, little-endian:
//   1. The client connects and sends the descriptors in order, up to limits::kDescriptorsPerMessage
//      with each message (SCM_RIGHTS). The payload of every message is the 16-byte token and a u32,
//      the total number of descriptors of the registration. If that is 0, it sends one message.
//   2. After the last one the daemon answers one message: "ok", or "error: <text>". It may answer
//      an error earlier; what the client sends after that is discarded. A registration that passes
//      something to the client does so before, in a separate message.
//   3. The connection stays open, silent, for the life of the registration. A client that sends
//      anything more is dropped. A client that ends its registration shuts its side down; the
//      daemon closes its side when it has released the memory.
//
// Tokens are random, single-use, and expire with their time-out. When there are too many clients,
// those that have not reached step 3 give way to others.
#pragma once

#include <sys/types.h>

#include <array>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/strong_type.h"
#include "common/base/unique_fd.h"
#include "common/model/limits.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {

using HandleToken = std::array<std::byte, 16>;
using HandleRegistrationId = StrongType<struct HandleRegistrationIdTag, uint64_t>;

// Lifecycle: Listen starts one thread, which runs the callbacks; only on_hangup may also run on a
// thread that calls Expect. The destructor joins the thread, closes every connection without
// calling anything, and removes the socket file. A callback must not destroy the socket. Threads:
// all functions from any thread, callbacks included.
class HandleSocket {
 public:
  struct Options {
    std::string path;
    AllowedUsers allowed = {};
    // The time from connecting to the last descriptor.
    std::chrono::nanoseconds finish_timeout = limits::kHandleTimeout;
    size_t connections_max = limits::kHandleConnectionsMax;
  };

  struct Expectation {
    size_t descriptor_count = 0;  // at most limits::kDescriptorsMax; 0: only the token is sent
    // The process that registered. Only a connection of this user may use the token. If too many
    // registrations wait, one of the process that has most of them gives way.
    std::optional<UnixPeer> peer = std::nullopt;
    // The time until a connection must send the token.
    std::chrono::nanoseconds timeout = limits::kHandleTimeout;
    // Gets all descriptors, in order, and a duplicate of the connection. The client sees the
    // hang-up when the registration has ended and `connection` is closed; to the client this means
    // that the daemon no longer uses the memory. OK is answered as "ok"; an error is answered as an
    // error and ends the registration. Other clients wait while it runs: it must return within
    // limits::kRpcDeadline.
    std::function<Status(std::vector<UniqueFd> descriptors, UniqueFd connection)> on_descriptors;
    // The time that an established connection should last at most. If it lasts longer, on_overdue
    // is called, once; the connection stays.
    std::optional<std::chrono::nanoseconds> lasts = std::nullopt;
    std::function<void()> on_overdue = nullptr;
    // The registration has ended: the client hung up (CANCELLED), was too late (DEADLINE_EXCEEDED),
    // sent something wrong (INVALID_ARGUMENT), gave way to others (RESOURCE_EXHAUSTED; called by
    // their Expect), or on_descriptors failed (its status). Called exactly once, unless Drop is
    // called first or the socket is destroyed.
    std::function<void(const Status& why)> on_hangup;
  };

  struct Registration {
    HandleRegistrationId id;
    HandleToken token;
  };

  // Binds with mode 0660. A socket file that no process listens on is replaced.
  // FAILED_PRECONDITION: a process listens on it, or the file is not a socket. INVALID_ARGUMENT:
  // the path is too long.
  static Result<std::unique_ptr<HandleSocket>> Listen(Options options);

  ~HandleSocket();

  // INVALID_ARGUMENT: descriptor_count is too large. If limits::kHandleExpectationsMax are waiting,
  // or limits::kHandleExpectationsPerProcessMax of this process, one of them ends
  // (greediest_peer.h).
  Result<Registration> Expect(Expectation expectation);

  // Ends a registration from this side: invalidates its token and closes its connection. No call of
  // on_hangup starts after this returns; one already running on the socket's thread may still be
  // running. Unknown and ended ids are ignored.
  void Drop(HandleRegistrationId id);

  const std::string& path() const;

 private:
  class Impl;
  explicit HandleSocket(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
