// A stream socket file whose connections are let in by user, limited in number, and handed to a
// server, once their client has said something.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/model/limits.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {

// Lifecycle: Listen starts one thread; Stop (or the destructor) ends it, ends every connection that
// it has handed out and that still lives, and removes the socket file. Threads: safe from any.
class UnixListener {
 public:
  struct Options {
    std::string path;
    AllowedUsers allowed = {};
    size_t connections_max = limits::kLocalConnectionsMax;
    // How much a client has to say before it is handed out: what its protocol begins with.
    size_t first_bytes = 1;
    // From connecting until it has.
    std::chrono::milliseconds speak_timeout = limits::kHandshakeTimeout;
    // Takes a connection, not blocking. On the listener's thread; never after StopAccepting.
    std::function<void(UniqueFd)> on_connection;
  };

  // Errors as ListenUnix's.
  static Result<std::unique_ptr<UnixListener>> Listen(Options options);
  ~UnixListener();

  // No more connections are handed out after it returns; those that were live on. Idempotent.
  void StopAccepting();
  void Stop();

  // Connections that live, silent ones included.
  size_t connection_count() const;

 private:
  class Impl;
  explicit UnixListener(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
