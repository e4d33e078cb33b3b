// The TLS files of a running daemon: checks them, reloads them when they change, and gives them to
// the servers and channels that need them.
//
// Code that makes a connection calls `current()` at that moment, so new connections use new files
// and old connections continue. grpc_credentials.h and https_context.h convert it for gRPC and
// HTTP.
#pragma once

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/model/limits.h"
#include "common/service/security/identity.h"
#include "common/service/security/tls_files.h"

namespace dws {

// Lifecycle: Load starts a thread that watches the files; the destructor ends it. Threads: safe
// from any.
class Credentials {
 public:
  struct Options {
    TlsFiles files;
    // The daemon's certificate must have these identities.
    std::vector<Identity> required;
    std::chrono::milliseconds check_interval = limits::kTlsCheckInterval;
  };

  // Errors as ReadTlsFiles and CheckTlsMaterial.
  static Result<std::shared_ptr<Credentials>> Load(Options options);

  // Never null. CA, certificate and key are of one generation, so they belong together.
  std::shared_ptr<const TlsMaterial> current() const;

  // Reads the files again. After an error the previous contents stay in use. The thread does it by
  // itself when the contents have changed and then stayed the same for one check_interval. Logs
  // either outcome.
  Status Reload();

 private:
  explicit Credentials(Options options);
  // Loads the files if they have changed and stay the same.
  void Look();
  Status Take(TlsMaterial material);

  const Options options_;
  mutable Mutex mutex_;
  std::shared_ptr<const TlsMaterial> current_ GUARDED_BY(mutex_);
  std::string tried_ GUARDED_BY(mutex_);  // the contents that were last accepted or refused
  // Used only by the thread.
  std::string seen_;
  int looks_ = 0;  // since the last try
  LoopThread loop_;
};

}  // namespace dws
