#include "common/mesh/traffic.h"

#include <algorithm>
#include <numeric>

namespace dws::mesh {

Traffic TrafficOf(const Plan& plan, size_t source_ranks, size_t destination_ranks) {
  Traffic traffic{.sent = std::vector<uint64_t>(source_ranks, 0),
                  .received = std::vector<uint64_t>(destination_ranks, 0),
                  .pairs = std::vector<uint64_t>(source_ranks * destination_ranks, 0)};
  if (plan.policy == SharePolicy::kBroadcast) {
    // Regions say where bytes end; rank 0 sends all of them to all.
    for (size_t rank = 1; rank < source_ranks; ++rank) {
      traffic.sent[rank] = plan.gathered_bytes[rank];
      traffic.gathered_bytes += plan.gathered_bytes[rank];
    }
    const size_t takers = plan.whole_takers.size();
    traffic.sent[0] = plan.whole_bytes * takers;
    traffic.host_bytes = plan.whole_bytes * (destination_ranks - takers);
    for (const uint32_t d : plan.whole_takers) {
      traffic.received[d] = traffic.pairs[d] = plan.whole_bytes;
    }
    traffic.staging_bytes = plan.largest_tensor_bytes;
    return traffic;
  }
  for (const Region& region : plan.regions) {
    const uint64_t runs = plan.RunsOf(region);
    const uint64_t bytes = runs * region.inner_bytes;
    if (region.hop == Hop::kHost) {
      traffic.host_bytes += bytes;
      continue;
    }
    traffic.sent[region.source] += bytes;
    traffic.received[region.destination] += bytes;
    traffic.pairs[region.source * destination_ranks + region.destination] += bytes;
    if (runs > limits::kRegionRunsMax) {
      traffic.staging_bytes = std::max(traffic.staging_bytes, bytes);
    }
  }
  return traffic;
}

double Balance(const std::vector<uint64_t>& bytes) {
  const uint64_t sum = std::accumulate(bytes.begin(), bytes.end(), uint64_t{0});
  if (sum == 0) return 1;
  return static_cast<double>(*std::max_element(bytes.begin(), bytes.end())) *
         static_cast<double>(bytes.size()) / static_cast<double>(sum);
}

double SecondsAt(const Traffic& traffic, double bytes_per_second) {
  const auto most = [](const std::vector<uint64_t>& bytes) {
    return bytes.empty() ? 0 : *std::max_element(bytes.begin(), bytes.end());
  };
  // What rank 0 gathers it also receives.
  const uint64_t busiest =
      std::max({most(traffic.sent), most(traffic.received), traffic.gathered_bytes});
  return static_cast<double>(busiest) / bytes_per_second;
}

}  // namespace dws::mesh
