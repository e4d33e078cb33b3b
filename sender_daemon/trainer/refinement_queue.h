// Requests of receivers to cut the layout finer. Many ask at once, mostly for the same: they are
// merged, and carried out one after the other between the calls of the trainer.
#pragma once

#include <vector>

#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "sender_daemon/serve/refine_request.h"

namespace dws {

class TrainerSession;

// Threads: safe from any. `executor` is the trainer's and ends before the session.
class RefinementQueue {
 public:
  RefinementQueue(Executor& executor, TrainerSession& session)
      : executor_(executor), session_(session) {}

  // Never blocks.
  void Ask(RefineRequest request);

 private:
  void Run();

  Executor& executor_;
  TrainerSession& session_;
  Mutex mutex_;
  bool posted_ GUARDED_BY(mutex_) = false;
  std::vector<RefineRequest> requests_ GUARDED_BY(mutex_);
};

}  // namespace dws
