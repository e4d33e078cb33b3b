// Makes an engine load the local checkpoint, and knows which version the engine holds.
//
// That is known only after a load has succeeded. Before that, and after a load whose end was not
// seen, the engine may hold parts of two versions, or still read the files. Then it is not resumed,
// and may_read() means that the files must not be changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "receiver_daemon/engine/engine_control.h"

namespace dws {

// Owns the control of the engine. Threads: one.
class EngineLoader {
 public:
  // Makes the control of the engine. UNAVAILABLE, DEADLINE_EXCEEDED: try again later.
  using MakeControl = std::function<Result<std::unique_ptr<EngineControl>>()>;
  // Called with the version that the engine holds whenever that may have changed; nullopt: unknown.
  using OnHolds = std::function<void(std::optional<uint64_t>)>;

  // `clock` outlives it.
  EngineLoader(MakeControl make_control, OnHolds on_holds, Duration timeout, const Clock& clock);

  std::optional<uint64_t> holds() const { return holds_; }
  // The engine may be reading the files.
  bool may_read() const { return may_read_; }
  // The checkpoint was replaced: what the engine holds is unknown, and it may be reading.
  void Forget();

  // Pauses the engine, makes it load `version`, resumes it; returns how long it was paused. If the
  // pause fails the engine continues with the version it held, if that is known. After any other
  // error it stays as it is, paused or not, until a later load succeeds.
  Result<Duration> Load(uint64_t version);

  // Checks, at most every few seconds, that the engine still holds what it loaded. UNAVAILABLE,
  // FAILED_PRECONDITION: it is gone or was restarted; what it holds is unknown now.
  Status Check();

 private:
  Status LoadPaused(uint64_t version);
  void SetHolds(std::optional<uint64_t> version);

  const MakeControl make_control_;
  const OnHolds on_holds_;
  const Duration timeout_;
  const Clock& clock_;
  std::unique_ptr<EngineControl> control_;
  std::optional<uint64_t> holds_;
  bool may_read_ = true;
  Duration check_interval_;
  TimePoint check_at_;  // of the next check
};

}  // namespace dws
