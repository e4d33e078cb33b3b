// dws-receiver as an object: makes the parts, wires them, stops them in order. No flags, no
// signals.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <vector>

#include "common/base/pulse.h"
#include "common/base/status.h"
#include "proto/admin.pb.h"
#include "receiver_daemon/options/receiver_options.h"

namespace dws {

// Lifecycle: serves from Start until Stop or the destructor. Threads: one, except as stated below.
class ReceiverApp {
 public:
  // INVALID_ARGUMENT: a bad option; names its flag. Other errors are those of the parts.
  static Result<std::unique_ptr<ReceiverApp>> Start(const ReceiverOptions& options);
  ~ReceiverApp();

  uint16_t admin_port() const;
  uint16_t http_port() const;

  // Ends a commit under way first: one that waits for the engine gets `grace`, one that writes
  // completes its writes. Engines continue with the version they have.
  void Stop(std::chrono::milliseconds grace);
  // Ends the grace of a Stop that runs on another thread.
  void EndGrace();

  // The status that operators see. Call it before Stop. Threads: safe from any.
  v1::StatusReply status() const;
  // An error if only a new process can continue: this one has lost a GPU. Threads: safe from any.
  Status broken() const;
  // Updates what changes with time alone (staleness), even while other threads hang. Call it about
  // every second, before Stop. Threads: safe from any.
  void ShowReadiness();
  // What the watchdog watches; valid as long as the app.
  std::vector<WatchedWork> VitalWork() const;

  // Reads the TLS files again; after an error the old ones stay in use. OK without TLS. Threads:
  // safe from any.
  Status ReloadCredentials();

 private:
  class Impl;
  explicit ReceiverApp(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
