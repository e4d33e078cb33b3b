// Signals as events: while it lives, SIGINT, SIGTERM and SIGHUP ask a command to end in good order,
// and SIGWINCH says that the terminal has another size.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws::dwsctl {

// Lifecycle: one at a time, installed before other threads are started (they inherit the mask); the
// destructor gives the signals their old effect back. Threads: the one that installed it; fd() and
// Next() from any, one at a time.
class Interrupts {
 public:
  enum class Event { kNone, kEnd, kResized };

  // RESOURCE_EXHAUSTED, UNAVAILABLE: no descriptor is left.
  static Result<std::unique_ptr<Interrupts>> Install();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Readable when Next() has an event.
  int fd() const { return descriptor_.get(); }
  // What arrived, the oldest first; never waits.
  Event Next();

 private:
  explicit Interrupts(UniqueFd descriptor) : descriptor_(std::move(descriptor)) {}
  const UniqueFd descriptor_;
};

}  // namespace dws::dwsctl
