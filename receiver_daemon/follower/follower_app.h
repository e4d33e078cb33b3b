// The dws-receiver that follows a folder of versions: makes the parts, wires them, stops them in
// order. No flags, no signals. receiver_app.h is the one that has senders.
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
class FollowerApp {
 public:
  // INVALID_ARGUMENT: a bad option; names its flag. Other errors are those of the parts.
  static Result<std::unique_ptr<FollowerApp>> Start(const ReceiverOptions& options);
  ~FollowerApp();

  uint16_t admin_port() const;
  uint16_t http_port() const;

  // Completes a version that is being applied: it cannot be left halfway. Its load gets `grace`; a
  // load that is given up leaves the engine paused.
  void Stop(std::chrono::milliseconds grace);
  // Ends the grace of a Stop that runs on another thread.
  void EndGrace();

  // The status that operators see. Call it before Stop. Threads: safe from any.
  v1::StatusReply status() const;
  // Updates what changes with time alone (staleness), even while other threads hang. Call it about
  // every second, before Stop. Threads: safe from any.
  void ShowReadiness();
  // What the watchdog watches; valid as long as the app.
  std::vector<WatchedWork> VitalWork() const;
  // As ReceiverApp.
  Status ReloadCredentials();

 private:
  class Impl;
  explicit FollowerApp(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
