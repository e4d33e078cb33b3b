// Has an engine load the local checkpoint, and knows what it holds.
//
// That is known only once a load has ended. Until then, and after a load whose end nobody saw, it
// may hold parts of two versions, or still read the files: it is not let run, and may_read() says
// that the files are not to be changed.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "receiver_daemon/engine/engine_control.h"

namespace dws {

// Threads: one.
class EngineLoader {
 public:
  // Makes the control of the engine. UNAVAILABLE, DEADLINE_EXCEEDED: later, perhaps.
  using MakeControl = std::function<Result<std::unique_ptr<EngineControl>>()>;
  // Of the engine: what it holds, when that has changed; nullopt: not known.
  using OnHolds = std::function<void(std::optional<uint64_t>)>;

  // `clock` outlives it.
  EngineLoader(MakeControl make_control, OnHolds on_holds, Duration timeout, const Clock& clock);

  std::optional<uint64_t> holds() const { return holds_; }
  // The engine may be reading the files.
  bool may_read() const { return may_read_; }
  // What the files were is of no use any more.
  void Forget();

  // Pauses the engine, has it load `version`, lets it run again: for how long it was paused. An
  // error: it runs with what it held, where that was known; else it stays as it is, paused or not,
  // until a later load has ended.
  Result<Duration> Load(uint64_t version);

  // Whether the engine still is the one that loaded, every few seconds. UNAVAILABLE,
  // FAILED_PRECONDITION: it is gone, or was started anew; what it holds is forgotten.
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
  TimePoint check_at_;  // next
};

}  // namespace dws
