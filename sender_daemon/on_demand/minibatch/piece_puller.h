// Brings the gradients that other ranks have pushed to this owner: mapped, from a rank on this
// host, else fetched.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <optional>

#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"
#include "common/model/stream_id.h"
#include "sender_daemon/on_demand/gather/owner_links.h"
#include "sender_daemon/on_demand/minibatch/pushed_pieces.h"

namespace dws {

// A piece to pull, as its rank has offered it.
struct PieceToPull {
  StreamId stream;
  TrainerRank from;
  std::optional<TrainerRank> combined_for = {};  // who pulls is a combiner
  PieceOffer offer;
  uint64_t outbox = 0;
  uint64_t offset_bytes = 0;
  uint64_t size_bytes = 0;  // that the owner has checked
  DType dtype = DType::kBF16;
  bool rounded = false;  // see v1::PieceOffer

  friend bool operator==(const PieceToPull&, const PieceToPull&) = default;
};

// Lifecycle: Stop, or the destructor, waits for pulls. Threads: safe from any.
class PiecePuller {
 public:
  struct Bytes {
    bool mapped = false;  // else it was fetched
    LentPiece piece;
  };
  using Done = std::function<void(Result<Bytes> bytes)>;

  // `links` outlives it.
  explicit PiecePuller(OwnerLinks& links);
  ~PiecePuller() { Stop(); }

  // Calls `done` once, from another thread, unless it is stopped before. False: too many pulls
  // wait, and it will not. Errors: DATA_LOSS: the bytes are not as their sender says. ABORTED: they
  // are no longer there. Others: the call's.
  [[nodiscard]] bool Pull(const PieceToPull& pull, Done done);
  void Stop() { pulls_.Stop(); }

 private:
  // An outbox of a rank, as this process maps it.
  struct Mapped {
    uint64_t id = 0;
    std::shared_ptr<const OutboxMemory> memory;  // null: it cannot be mapped
  };
  Result<Bytes> Bring(const PieceToPull& pull);
  // Null: it cannot be mapped.
  std::shared_ptr<const OutboxMemory> Map(const PieceToPull& pull);
  Result<OutboxMemory> Open(const PieceToPull& pull);
  Result<Bytes> Fetch(const PieceToPull& pull);

  OwnerLinks& links_;
  Mutex mutex_;
  std::map<TrainerRank, Mapped> mapped_ GUARDED_BY(mutex_);
  Executor pulls_;
};

}  // namespace dws
