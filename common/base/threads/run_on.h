// Runs a task on another thread's executor, and waits for its end.
#pragma once

#include <future>
#include <memory>
#include <string_view>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/executor.h"

namespace dws {

// Returns what `task` returns. `what` names it for messages, as "the registration". `task` may run
// after this has returned, so it owns what it uses. RESOURCE_EXHAUSTED: too many tasks wait.
// DEADLINE_EXCEEDED: it has not ended within `patience`. UNAVAILABLE: the executor has stopped.
template <typename Task>
Status RunOn(Executor& executor, Duration patience, std::string_view what, Task task) {
  const auto outcome = std::make_shared<std::promise<Status>>();
  std::future<Status> done = outcome->get_future();
  if (!executor.Post([outcome, task = std::move(task)]() mutable { outcome->set_value(task()); })) {
    return ResourceExhaustedError("{}: the sender is busy or shutting down; try again", what);
  }
  if (done.wait_for(patience) != std::future_status::ready) {
    return DeadlineExceededError("{} has not ended in time; try again", what);
  }
  try {
    return done.get();
  } catch (const std::future_error&) {  // the executor stopped and dropped the task
    return UnavailableError("the sender is shutting down");
  }
}

}  // namespace dws
