// A stream socket file. It admits connections by user, limits their number, and hands each one to a
// server once the client has sent its first bytes.
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

// Lifecycle: Listen starts one thread. Stop (or the destructor) ends it, shuts down every
// connection that is still open, and removes the socket file. Threads: safe from any.
class UnixListener {
 public:
  struct Options {
    std::string path;
    AllowedUsers allowed = {};
    size_t connections_max = limits::kLocalConnectionsMax;
    // How many bytes a client must send before its connection is handed out: the length of its
    // protocol's preface.
    size_t first_bytes = 1;
    // The time a client has for that after connecting.
    std::chrono::milliseconds speak_timeout = limits::kHandshakeTimeout;
    // Takes a non-blocking connection. Called on the listener's thread; never after StopAccepting.
    std::function<void(UniqueFd)> on_connection;
  };

  // Errors as UnixAcceptor::Listen.
  static Result<std::unique_ptr<UnixListener>> Listen(Options options);
  ~UnixListener();

  // After it returns, no more connections are handed out; earlier ones stay open. Idempotent.
  void StopAccepting();
  void Stop();

  // The number of open connections, silent ones included.
  size_t connection_count() const;

 private:
  class Impl;
  explicit UnixListener(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
