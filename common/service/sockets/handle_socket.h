// The handle socket: a SOCK_SEQPACKET unix socket beside the gRPC one, over which a client hands
// the descriptors of its memory to a daemon, and whose hang-up tells each side of the other's
// death.
//
// The wire, little-endian:
//   1. The client connects and sends the descriptors in order, up to limits::kDescriptorsPerMessage
//      with each message (SCM_RIGHTS). The payload of every message is the 16-byte token and u32
//      the total number of descriptors of the registration; where that is 0, one message.
//   2. After the last one the daemon answers one message: "ok", or "error: <text>". It may answer
//      an error earlier; what the client sends after that is discarded.
//   3. The connection stays open, silent, for the life of the registration. A client that sends
//      anything more is dropped. One that ends its registration shuts its side down; the daemon's
//      side ends when it has let go of the memory.
//
// Tokens are random, single-use, and die with their time-out. Clients that have not come to 3 give
// way to others when there are too many.
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

// Lifecycle: Listen starts one thread, which runs all callbacks but one (on_hangup); the destructor
// joins it, closes every connection without calling anything, and removes the socket file. Must not
// be destroyed by a callback. Threads: all functions from any thread, callbacks included.
class HandleSocket {
 public:
  struct Options {
    std::string path;
    AllowedUsers allowed = {};
    // From connecting to the last descriptor.
    std::chrono::nanoseconds finish_timeout = limits::kHandleTimeout;
    size_t connections_max = limits::kHandleConnectionsMax;
  };

  struct Expectation {
    size_t descriptor_count = 0;  // at most limits::kDescriptorsMax; 0: the token comes alone
    // Who registered: only this user's connection may use the token, and where too many wait, one
    // of the process that has most gives way.
    std::optional<UnixPeer> peer = std::nullopt;
    // Until a connection shows the token.
    std::chrono::nanoseconds timeout = limits::kHandleTimeout;
    // All descriptors, in order, and the connection once more: the client sees its end when both
    // the registration has ended and `connection` is closed, and takes that for the daemon's word
    // that it does not use the memory any more. OK is answered "ok"; an error is answered, and ends
    // the registration. Must not block for long: other clients wait.
    std::function<Status(std::vector<UniqueFd> descriptors, UniqueFd connection)> on_descriptors;
    // The registration has ended: the client hung up (CANCELLED), was too late (DEADLINE_EXCEEDED),
    // sent something wrong (INVALID_ARGUMENT), gave way to others (RESOURCE_EXHAUSTED; called by
    // their Expect), or on_descriptors failed (its status). Called exactly once, unless Drop came
    // first or the socket was destroyed.
    std::function<void(const Status& why)> on_hangup;
  };

  struct Registration {
    HandleRegistrationId id;
    HandleToken token;
  };

  // Binds with mode 0660. A socket file that nobody listens on is replaced. FAILED_PRECONDITION:
  // somebody listens on it, or it is no socket. INVALID_ARGUMENT: the path is too long.
  static Result<std::unique_ptr<HandleSocket>> Listen(Options options);

  ~HandleSocket();

  // INVALID_ARGUMENT: descriptor_count. Where limits::kHandleExpectationsMax are waiting, or
  // limits::kHandleExpectationsPerProcessMax of this process, one of these ends (greediest_peer.h).
  Result<Registration> Expect(Expectation expectation);

  // Ends a registration from this side: its token dies, its connection is closed. on_hangup is not
  // called after this returns; a call under way on the socket's thread may still be running.
  // Unknown and ended ids are ignored.
  void Drop(HandleRegistrationId id);

  const std::string& path() const;

 private:
  class Impl;
  explicit HandleSocket(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
