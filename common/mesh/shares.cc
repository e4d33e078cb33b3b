#include "common/mesh/shares.h"

#include <algorithm>
#include <cmath>

#include "common/base/check.h"

namespace dws::mesh {
namespace {

Status CheckShareCount(size_t count) {
  if (count <= limits::kPartsMax) return OkStatus();
  return ResourceExhaustedError("is divided into more than {} shares", limits::kPartsMax);
}

void AppendHolders(const Part& part, std::vector<Holder>& holders) {
  for (const uint32_t rank : part.holding->ranks) {
    const bool known = std::any_of(holders.begin(), holders.end(),
                                   [&](const Holder& holder) { return holder.rank == rank; });
    if (known) continue;  // a rank that holds a tied tensor twice sends it once
    holders.push_back({.rank = rank, .tensor = part.tensor, .fragment = part.fragment});
  }
}

// Disjoint shares with all their holders. Parts that overlap without being equal (tied tensors that
// are cut in different ways) are rare: the first one sends what both have.
Result<std::vector<Share>> DisjointShares(const std::vector<Part>& parts) {
  std::vector<Stripes> held;
  for (const Part& part : parts) held.push_back(part.fragment.part);
  const bool overlap = FindOverlap(held).has_value();
  std::vector<Share> shares;
  size_t holders = 0;
  for (const Part& part : parts) {
    std::vector<Stripes> rest{part.fragment.part};
    size_t copies = 0;  // of the part's ranks, as holders of shares
    for (size_t i = 0; overlap && i < shares.size(); ++i) {
      if (shares[i].part == part.fragment.part) {
        AppendHolders(part, shares[i].holders);
        ++copies;
      }
      rest = Without(rest, shares[i].part);
      DWS_RETURN_IF_ERROR(CheckShareCount(shares.size() + rest.size()));
    }
    holders += (copies + rest.size()) * part.holding->ranks.size();
    if (holders > limits::kHoldersMax) {
      return ResourceExhaustedError("has more than {} senders, counted for each of its parts",
                                    limits::kHoldersMax);
    }
    for (const Stripes& left : rest) {
      shares.push_back({.part = left, .holders = {}});
      AppendHolders(part, shares.back().holders);
    }
  }
  return shares;
}

// The load that all of `loads` (ascending) have after they were raised to a common level by `bytes`
// together; those above it take nothing.
double CommonLevel(const std::vector<double>& loads, double bytes) {
  double sum = bytes;
  double level = 0;
  for (size_t i = 0; i < loads.size(); ++i) {
    sum += loads[i];
    level = sum / static_cast<double>(i + 1);
    if (i + 1 == loads.size() || level <= loads[i + 1]) break;
  }
  return level;
}

}  // namespace

Status ShareDivider::AppendEqualShares(const Share& all, const ShareCost& cost,
                                       std::vector<Share>& shares) {
  const uint64_t bytes = Volume(all.part) * cost.element_bytes;
  std::vector<const Holder*> takers;
  for (const Holder& holder : all.holders) takers.push_back(&holder);
  const size_t count = std::min<size_t>(
      takers.size(), std::max<uint64_t>(1, bytes / std::max<uint64_t>(1, share_bytes_min_)));
  const auto lighter = [&](const Holder* a, const Holder* b) {
    return loads_[a->rank] != loads_[b->rank] ? loads_[a->rank] < loads_[b->rank]
                                              : a->rank < b->rank;
  };
  std::partial_sort(takers.begin(), takers.begin() + static_cast<std::ptrdiff_t>(count),
                    takers.end(), lighter);
  takers.resize(count);
  std::vector<double> loads;
  for (const Holder* taker : takers) loads.push_back(loads_[taker->rank]);
  const uint64_t rows = RowCount(all.part);
  const double row_load = static_cast<double>(bytes) * cost.copies / static_cast<double>(rows);
  const double level = CommonLevel(loads, static_cast<double>(bytes) * cost.copies);
  uint64_t begin = 0;
  double wanted = 0;  // in rows, of this taker and those before it
  for (size_t i = 0; i < count && begin < rows; ++i) {
    wanted += std::max(0.0, level - loads[i]) / row_load;
    const uint64_t end =
        i + 1 == count ? rows : std::min(rows, static_cast<uint64_t>(std::llround(wanted)));
    std::vector<Stripes> parts;
    CutRows(all.part, begin, std::max(begin, end), parts);
    for (const Stripes& part : parts) shares.push_back({.part = part, .holders = {*takers[i]}});
    DWS_RETURN_IF_ERROR(CheckShareCount(shares.size()));
    loads_[takers[i]->rank] += static_cast<double>(end - begin) * row_load;
    begin = end;
  }
  DWS_CHECK(begin == rows);
  return OkStatus();
}

Result<std::vector<Share>> ShareDivider::Divide(const std::vector<Part>& parts,
                                                const ShareCost& cost) {
  DWS_ASSIGN_OR_RETURN(std::vector<Share> all, DisjointShares(parts));
  if (policy_ == SharePolicy::kRoundRobin) return all;
  std::vector<Share> shares;
  for (Share& share : all) {
    if (policy_ == SharePolicy::kShares) {
      DWS_RETURN_IF_ERROR(AppendEqualShares(share, cost, shares));
      continue;
    }
    const auto taker = policy_ == SharePolicy::kBroadcast
                           ? share.holders.begin()
                           : std::min_element(share.holders.begin(), share.holders.end(),
                                              [&](const Holder& a, const Holder& b) {
                                                return loads_[a.rank] < loads_[b.rank];
                                              });
    loads_[taker->rank] +=
        static_cast<double>(Volume(share.part) * cost.element_bytes) * cost.copies;
    shares.push_back({.part = share.part, .holders = {*taker}});
  }
  return shares;
}

}  // namespace dws::mesh
