// What a plan costs: bytes by rank and pair, staging, and time at a link's speed. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/mesh/plan.h"

namespace dws::mesh {

struct Traffic {
  std::vector<uint64_t> sent;      // over the network, by each source rank
  std::vector<uint64_t> received;  // by each destination rank
  std::vector<uint64_t> pairs;     // from source s to destination d: at s * received.size() + d
  uint64_t gathered_bytes = 0;     // between source ranks, for kBroadcast
  uint64_t host_bytes = 0;         // copied inside hosts
  uint64_t staging_bytes = 0;      // temporary memory that the worst destination rank needs
};

// Of a broadcast, rank 0 sends every tensor whole to every destination rank, or to one on each
// host, which the others copy it from. Staging is the largest region with more than kRegionRunsMax
// runs, or the largest tensor of a broadcast.
Traffic TrafficOf(const Plan& plan, size_t source_ranks, size_t destination_ranks);

// The busiest of `bytes` over their mean; 1 if there are none.
double Balance(const std::vector<uint64_t>& bytes);

// Seconds until the busiest rank is done, when each rank has a link of its own in each direction.
double SecondsAt(const Traffic& traffic, double bytes_per_second);

}  // namespace dws::mesh
