// Adds gradients to sums on a thread of its own, one piece after the other, in the order in which
// it is told.
#pragma once

#include <functional>
#include <memory>

#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/thread_pool.h"
#include "common/memory/gradients/accumulators.h"
#include "sender_daemon/on_demand/minibatch/pushed_pieces.h"

namespace dws {

// Lifecycle: Stop, or the destructor, waits for what runs and drops the rest. Threads: safe from
// any; callbacks come from the thread of its own.
class PieceAdder {
 public:
  // `pool` outlives it, and shares the work.
  explicit PieceAdder(ThreadPool& pool);
  ~PieceAdder() { Stop(); }

  void Add(std::shared_ptr<Accumulators> sums, UnitIndex unit, LentPiece piece,
           std::function<void(const Status&)> done);
  void Seal(std::shared_ptr<Accumulators> sums,
            std::function<void(const Result<GradientSum>&)> done);
  // The next piece of each block is stored.
  void LetGo(std::shared_ptr<Accumulators> sums);
  void Stop() { adds_.Stop(); }

 private:
  void Post(std::function<void()> task);

  ThreadPool& pool_;
  Executor adds_;
};

}  // namespace dws
