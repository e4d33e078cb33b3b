// The daemon's TLS files for as long as it runs: checked, reloaded when they change, handed to the
// servers and channels that need them.
//
// Whoever makes a connection takes `current()` at that moment, so new connections use new files and
// old ones live on. grpc_credentials.h and https_context.h make what gRPC and HTTP want of it.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/model/limits.h"
#include "common/service/security/identity.h"
#include "common/service/security/tls_files.h"

namespace dws {

// Lifecycle: Load starts a thread that looks at the files; the destructor ends it. Threads: safe
// from any.
class Credentials {
 public:
  struct Options {
    TlsFiles files;
    // Its own certificate must have this identity; nullopt: any, or none.
    std::optional<Identity> required = std::nullopt;
    std::chrono::milliseconds check_interval = limits::kTlsCheckInterval;
  };

  // As ReadTlsFiles and CheckTlsMaterial.
  static Result<std::shared_ptr<Credentials>> Load(Options options);
  ~Credentials();

  // Never null. One generation: ca, certificate and key belong together.
  std::shared_ptr<const TlsMaterial> current() const;

  // Reads the files again. On an error, those of before stay in use. Runs by itself when the
  // contents have changed and stood still for one check_interval; logs either outcome.
  Status Reload();

 private:
  explicit Credentials(Options options);
  void WatchFiles();
  Status Take(TlsMaterial material);

  const Options options_;
  mutable Mutex mutex_;
  CondVar stopped_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  std::shared_ptr<const TlsMaterial> current_ GUARDED_BY(mutex_);
  std::string tried_ GUARDED_BY(mutex_);  // the contents that were taken or refused last
  std::thread thread_;
};

}  // namespace dws
