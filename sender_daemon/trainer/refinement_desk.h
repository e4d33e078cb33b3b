// Requests of receivers to cut the layout finer. Many ask at once, mostly for the same: they are
// merged, and carried out one after the other between the calls of the trainer.
#pragma once

#include <functional>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/model/refinement.h"
#include "common/model/stream_id.h"

namespace dws {

class TrainerSession;

// What one receiver asks for.
struct RefineRequest {
  StreamId stream;
  CutWishes cuts;
  bool probe = false;  // only whether it could be done
  // Called once, on any thread; of what is carried out only with an error, because the next Welcome
  // tells the rest.
  std::function<void(const Status&)> answer;
};

// Threads: safe from any. `executor` is the trainer's and ends before the session.
class RefinementDesk {
 public:
  RefinementDesk(Executor& executor, TrainerSession& session)
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
