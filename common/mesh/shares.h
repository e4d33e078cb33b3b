// Who sends what: divides each canonical tensor among the source ranks that hold it. Pure.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/status.h"
#include "common/mesh/mesh_layout.h"

namespace dws::mesh {

enum class SharePolicy : uint8_t {
  kShares,       // replicas divide a tensor among themselves, so that all send the same bytes
  kLeastLoaded,  // whole parts, each from the replica that has sent the fewest bytes so far
  kRoundRobin,   // whole ranks: of the ranks that need a part, the n-th is served by the n-th
                 // replica
  kBroadcast,  // everything is gathered at source rank 0, which sends it whole to each destination
};

// A source rank, and where it has what it sends.
struct Holder {
  uint32_t rank = 0;
  uint32_t tensor = 0;  // of the source layout
  Fragment fragment;
};

// Elements that are sent by one of `holders`: destination rank d takes them from number d modulo
// their count. Shares of one tensor are disjoint.
struct Share {
  Stripes part;
  std::vector<Holder> holders;
};

// What one tensor costs: bytes of an element, and how many destinations take it, on average.
struct ShareCost {
  uint32_t element_bytes = 1;
  double copies = 1;
};

// Makes the shares of one tensor after the other and remembers what each rank sends. Threads: one
// at a time.
class ShareDivider {
 public:
  // `share_bytes_min` limits into how many shares a tensor is cut.
  ShareDivider(SharePolicy policy, uint32_t rank_count, uint64_t share_bytes_min)
      : policy_(policy), share_bytes_min_(share_bytes_min), loads_(rank_count, 0) {}

  // The shares of the tensor that the source holds as `parts`. Elements that several parts have
  // are in one share. RESOURCE_EXHAUSTED: over kPartsMax shares or kHoldersMax holders.
  Result<std::vector<Share>> Divide(const std::vector<Part>& parts, const ShareCost& cost);

 private:
  Status AppendEqualShares(const Share& all, const ShareCost& cost, std::vector<Share>& shares);

  SharePolicy policy_;
  uint64_t share_bytes_min_;
  std::vector<double> loads_;  // bytes that each source rank sends
};

}  // namespace dws::mesh
