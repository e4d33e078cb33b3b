// dws-receiver that follows a folder of versions: makes the parts, wires them, takes them down in
// order. No flags, no signals. (receiver_app.h is the one that has senders.)
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

// Lifecycle: serves from Start until Stop or the destructor. Threads: one.
class FollowerApp {
 public:
  // INVALID_ARGUMENT: an option, by its flag. Else what the parts return.
  static Result<std::unique_ptr<FollowerApp>> Start(const ReceiverOptions& options);
  ~FollowerApp();

  uint16_t admin_port() const;
  uint16_t http_port() const;

  // A version under way is completed: it cannot be left halfway. A load of it gets `grace`; one
  // that is given up then leaves the engine paused.
  void Stop(std::chrono::milliseconds grace);
  // While Stop runs on another thread: its grace is over.
  void EndGrace();

  // As an operator sees it. Before Stop. Threads: safe from any.
  v1::StatusReply status() const;
  // What comes with time alone, staleness, even while the rest hangs; call it every second or so.
  // Before Stop. Threads: safe from any.
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
