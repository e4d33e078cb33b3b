// Signals as events. SIGINT, SIGTERM and SIGHUP ask a command to end cleanly, and SIGWINCH reports
// a new size of the terminal.
#pragma once

#include <memory>

#include "common/base/status.h"
#include "common/base/unique_fd.h"

namespace dws::dwsctl {

// Lifecycle: one object at a time; install it before other threads start, because they inherit the
// mask. The destructor restores the effect of the signals. Threads: the one that installed it; any
// may call fd() and Next(), one at a time.
class Interrupts {
 public:
  enum class Event { kNone, kEnd, kResized };

  // RESOURCE_EXHAUSTED, UNAVAILABLE: no free descriptor.
  static Result<std::unique_ptr<Interrupts>> Install();
  ~Interrupts();
  Interrupts(const Interrupts&) = delete;
  Interrupts& operator=(const Interrupts&) = delete;

  // Readable when Next() has an event.
  int fd() const { return descriptor_.get(); }
  // The oldest event that has arrived; never waits.
  Event Next();

 private:
  explicit Interrupts(UniqueFd descriptor) : descriptor_(std::move(descriptor)) {}
  const UniqueFd descriptor_;
};

}  // namespace dws::dwsctl
