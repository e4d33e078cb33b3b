// A job's layouts as write_jobs.py describes them: what trainer ranks declare, and what the ranks
// of an engine attach.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"
#include "receiver_daemon/weights/engine_mapping.h"

namespace dws::bench {

struct LayoutJob {
  struct TrainerRank {
    std::vector<Shard> shards;
    std::vector<uint32_t> holders;  // by shard: of `holders`, who has the same part of the tensor
  };
  struct EngineRank {
    std::vector<EngineView> views;  // in one region
    uint64_t region_bytes = 0;
    std::vector<std::string> excluded;  // what no rank of its receiver holds; of the first one
  };

  std::string model;
  double shares_seconds = 0;  // that each process of the trainer needs for dws.trainers.shares
  uint32_t engines = 0;       // alike
  uint32_t host_ranks = 0;    // engine ranks of a receiver
  std::vector<TrainerRank> trainer;
  std::vector<std::vector<uint32_t>> holders;
  std::vector<EngineRank> engine;
};

// INVALID_ARGUMENT, NOT_FOUND: no such file, or it is not as write_jobs.py writes it.
Result<LayoutJob> ReadLayoutJob(const std::string& path);

}  // namespace dws::bench
