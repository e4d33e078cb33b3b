// dws-receiver as an object: makes the parts, wires them, takes them down in order. No flags, no
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

// Lifecycle: serves from Start until Stop or the destructor. Threads: one.
class ReceiverApp {
 public:
  // INVALID_ARGUMENT: an option, by its flag. Else what the parts return.
  static Result<std::unique_ptr<ReceiverApp>> Start(const ReceiverOptions& options);
  ~ReceiverApp();

  uint16_t admin_port() const;
  uint16_t http_port() const;

  // Ends a commit under way first: one that waits for the engine gets `grace`, one that writes ends
  // what it writes. Engines go on with the version they have.
  void Stop(std::chrono::milliseconds grace);
  // While Stop runs on another thread: its grace is over.
  void EndGrace();

  // As an operator sees it. Before Stop. Threads: safe from any.
  v1::StatusReply status() const;
  // Why only a new process can go on: a GPU is lost to this one. Threads: safe from any.
  Status broken() const;
  // What comes with time alone, staleness, even while the rest hangs; call it every second or so.
  // Before Stop. Threads: safe from any.
  void ShowReadiness();
  // What the watchdog watches; valid as long as the app.
  std::vector<WatchedWork> VitalWork() const;

  // Reads the TLS files again; on an error those of before stay in use. OK without TLS. Threads:
  // safe from any.
  Status ReloadCredentials();

 private:
  class Impl;
  explicit ReceiverApp(std::unique_ptr<Impl> impl);

  std::unique_ptr<Impl> impl_;
};

}  // namespace dws
