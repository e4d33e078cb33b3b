#include "sender_daemon/on_demand/minibatch/piece_adder.h"

#include <utility>

#include "common/base/failpoint.h"
#include "common/base/log/log.h"

namespace dws {
namespace {
// Far more than there are: of the shard, and of each owner for which the sender combines, one add
// for each rank at a time, a seal, and what lets go.
constexpr size_t kTasksMax = size_t{1} << 20;
}  // namespace

PieceAdder::PieceAdder(ThreadPool& pool) : pool_(pool), adds_(1, kTasksMax) {}

void PieceAdder::Post(std::function<void()> task) {
  if (!adds_.Post(std::move(task))) LogDebug("add_dropped", {});  // it is stopping
}

void PieceAdder::Add(std::shared_ptr<Accumulators> sums, UnitIndex unit, LentPiece piece,
                     std::function<void(const Status&)> done) {
  Post([this, sums = std::move(sums), unit, piece = std::move(piece), done = std::move(done)] {
    done(sums->Add({.unit = unit.value(), .blocks = {}, .dtype = piece.dtype, .bytes = piece.bytes},
                   pool_));
  });
}

void PieceAdder::Seal(std::shared_ptr<Accumulators> sums,
                      std::function<void(const Result<GradientSum>&)> done) {
  Post([this, sums = std::move(sums), done = std::move(done)] {
    const Result<GradientSum> sum = sums->Seal(pool_);
    DWS_KILLPOINT("sender.train.after_seal");
    done(sum);
  });
}

void PieceAdder::LetGo(std::shared_ptr<Accumulators> sums) {
  Post([sums = std::move(sums)] { sums->LetGo(); });
}

}  // namespace dws
