// What a sender holds for its rank in one stream. Made at registration, shared read-only by all
// services, and replaced as a whole when a new stream begins or its layout is refined.
#pragma once

#include <cstdint>
#include <memory>

#include "common/model/layout.h"
#include "common/model/stream_id.h"
#include "common/model/weight_version.h"
#include "sender_daemon/capture/snapshot.h"
#include "sender_daemon/publish/delta_log.h"

namespace dws {

// Everything that a registered trainer rank has published. The parts that serve it share it.
struct RankState {
  StreamId stream;
  TrainerRank trainer_rank;
  uint32_t world_size = 1;
  RankEpoch rank_epoch;
  bool begins_stream = false;  // the first version it publishes is the first of the stream
  // The layout that the trainer declared; the snapshot has that layout, or a finer one.
  RankLayout declared;
  std::shared_ptr<Snapshot> snapshot;
  std::shared_ptr<DeltaLog> log;

  const RankLayout& layout() const { return snapshot->layout(); }
};

using RankStatePtr = std::shared_ptr<const RankState>;

}  // namespace dws
