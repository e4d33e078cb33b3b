// How a plan is made, one canonical tensor after the other:
//  1. which fragments the ranks of both sides hold of it (PartIndex);
//  2. which source rank sends which elements (ShareDivider);
//  3. a region for each pair of a share and a fragment that is needed. What regions write of a
//     fragment must be disjoint parts with as many elements as it has.
#include "common/mesh/plan.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "common/base/check.h"

namespace dws::mesh {
namespace {

// The ranks that take a part from its source, and those that copy it from one of these.
struct Takers {
  std::vector<uint32_t> network;
  std::vector<std::pair<uint32_t, uint32_t>> host;  // from, to
};

class Planner {
 public:
  Planner(const Catalogue& catalogue, const MeshLayout& source, const MeshLayout& destination,
          const PlanOptions& options)
      : catalogue_(catalogue),
        source_(source),
        destination_(destination),
        options_(options),
        divider_(options.policy, source.rank_count, options.share_bytes_min),
        received_(destination.rank_count, 0) {}

  Result<Plan> Make();

 private:
  std::vector<uint32_t> Order(const PartIndex& have) const;
  Takers TakersOf(const Part& part) const;
  std::vector<uint32_t> WholeTakers() const;
  Status AddTensor(uint32_t tensor, const std::vector<Part>& have, const std::vector<Part>& need);
  Status AddPart(uint32_t tensor, const Part& need, const std::vector<Share>& shares);
  Status AddCopy(const Copy& copy, Region region);
  void SortRegions();
  Status Missing(uint32_t tensor, const Part& need, const std::vector<Share>& shares) const;

  const Catalogue& catalogue_;
  const MeshLayout& source_;
  const MeshLayout& destination_;
  const PlanOptions& options_;
  ShareDivider divider_;
  std::vector<uint64_t> received_;  // bytes over the network, by each destination rank
  Plan plan_;
};

// Tensors that few ranks hold come first: those that many hold can then make up for differences.
std::vector<uint32_t> Planner::Order(const PartIndex& have) const {
  std::vector<uint32_t> order(catalogue_.size());
  std::iota(order.begin(), order.end(), 0);
  if (options_.policy != SharePolicy::kShares) return order;
  std::vector<std::pair<size_t, uint64_t>> keys;
  for (uint32_t t = 0; t < order.size(); ++t) {
    keys.emplace_back(have.ReplicasOf(t), ~catalogue_[t].SizeBytes());
  }
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return keys[a] < keys[b]; });
  return order;
}

// Of the ranks of a host, the one that has received least takes the part from its source.
Takers Planner::TakersOf(const Part& part) const {
  const std::vector<uint32_t>& ranks = part.holding->ranks;
  if (!options_.once_per_host || destination_.hosts.empty()) return {.network = ranks, .host = {}};
  std::map<uint32_t, std::vector<uint32_t>> hosts;
  for (const uint32_t rank : ranks) hosts[destination_.hosts[rank]].push_back(rank);
  Takers takers;
  for (const auto& [host, members] : hosts) {
    const uint32_t first =
        *std::min_element(members.begin(), members.end(),
                          [&](uint32_t a, uint32_t b) { return received_[a] < received_[b]; });
    takers.network.push_back(first);
    for (const uint32_t rank : members) {
      if (rank != first) takers.host.emplace_back(first, rank);
    }
  }
  return takers;
}

// The destination ranks to which a broadcast sends everything.
std::vector<uint32_t> Planner::WholeTakers() const {
  std::vector<uint32_t> takers;
  std::set<uint32_t> hosts;
  for (uint32_t rank = 0; rank < destination_.rank_count; ++rank) {
    const bool once = options_.once_per_host && !destination_.hosts.empty();
    if (!once || hosts.insert(destination_.hosts[rank]).second) takers.push_back(rank);
  }
  return takers;
}

Status Planner::AddCopy(const Copy& copy, Region region) {
  if (plan_.regions.size() >= options_.regions_max) {
    return ResourceExhaustedError("a plan has more than {} regions, at tensor '{}'",
                                  options_.regions_max, catalogue_[region.tensor].name);
  }
  region.source_offset = copy.source_offset;
  region.destination_offset = copy.destination_offset;
  region.inner_bytes = copy.inner_bytes;
  region.loop_count = static_cast<uint8_t>(copy.loops.size());
  // Regions that follow each other are mostly alike: to several ranks, or of tensors of one shape.
  const bool alike = plan_.loops.size() >= copy.loops.size() &&
                     std::equal(copy.loops.rbegin(), copy.loops.rend(), plan_.loops.rbegin());
  if (!alike) plan_.loops.insert(plan_.loops.end(), copy.loops.begin(), copy.loops.end());
  region.first_loop = static_cast<uint32_t>(plan_.loops.size() - copy.loops.size());
  plan_.regions.push_back(region);
  return OkStatus();
}

Status Planner::Missing(uint32_t tensor, const Part& need, const std::vector<Share>& shares) const {
  std::vector<Stripes> held;
  for (const Share& share : shares) held.push_back(share.part);
  const std::optional<Box> hole = FindHole(need.fragment.part, held);
  DWS_CHECK(hole.has_value());  // shares are disjoint
  return FailedPreconditionError(
      "tensor '{}': rank {} needs {} of '{}', which no source rank holds; expected every element "
      "on at least one",
      destination_.tensors[need.tensor].name, need.holding->ranks.front(),
      ToString(*hole, catalogue_[tensor].shape.size()), catalogue_[tensor].name);
}

Status Planner::AddPart(uint32_t tensor, const Part& need, const std::vector<Share>& shares) {
  const Takers takers = TakersOf(need);
  const uint32_t element_bytes = ElementBytes(catalogue_[tensor].dtype);
  const Fragment& fragment = need.fragment;
  const Box bounds = Bounds(fragment.part);
  std::vector<Stripes> written;
  std::vector<Stripes> parts;
  for (const Share& share : shares) {
    if (!Intersect(Bounds(share.part), bounds).has_value()) continue;
    parts.clear();
    Intersect(share.part, fragment.part, parts);
    written.insert(written.end(), parts.begin(), parts.end());
    for (const Stripes& part : parts) {
      const Holder* last = nullptr;
      Copy copy;
      // Ranks that need different parts begin with different replicas.
      size_t replica = takers.network.front();
      for (const uint32_t rank : takers.network) {
        const Holder& holder = share.holders[replica++ % share.holders.size()];
        if (&holder != last) copy = CopyOf(holder.fragment, fragment, part, element_bytes);
        last = &holder;
        DWS_RETURN_IF_ERROR(AddCopy(copy, {.source = holder.rank,
                                           .destination = rank,
                                           .tensor = tensor,
                                           .source_tensor = holder.tensor,
                                           .destination_tensor = need.tensor}));
      }
    }
  }
  if (!CoverOnce(written, fragment.part)) return Missing(tensor, need, shares);
  const uint64_t bytes = Volume(fragment.part) * element_bytes;
  for (const uint32_t rank : takers.network) received_[rank] += bytes;
  for (const auto& [from, to] : takers.host) {
    DWS_RETURN_IF_ERROR(AddCopy(CopyOf(fragment, fragment, fragment.part, element_bytes),
                                {.source = from,
                                 .destination = to,
                                 .tensor = tensor,
                                 .source_tensor = need.tensor,
                                 .destination_tensor = need.tensor,
                                 .hop = Hop::kHost}));
  }
  plan_.covered_bytes += bytes * need.holding->ranks.size();
  return OkStatus();
}

Status Planner::AddTensor(uint32_t tensor, const std::vector<Part>& have,
                          const std::vector<Part>& need) {
  const uint64_t bytes = catalogue_[tensor].SizeBytes();
  const uint32_t element_bytes = ElementBytes(catalogue_[tensor].dtype);
  double taken = 0;
  for (const Part& part : need) {
    taken += static_cast<double>(Volume(part.fragment.part) * element_bytes) *
             static_cast<double>(TakersOf(part).network.size());
  }
  Result<std::vector<Share>> divided = divider_.Divide(
      have, {.element_bytes = element_bytes, .copies = taken / static_cast<double>(bytes)});
  if (!divided.ok()) {
    return Annotate(divided.status(), fmt::format("tensor '{}'", catalogue_[tensor].name));
  }
  const std::vector<Share> shares = *std::move(divided);
  if (options_.policy == SharePolicy::kBroadcast) {
    plan_.whole_bytes += bytes;
    plan_.largest_tensor_bytes = std::max(plan_.largest_tensor_bytes, bytes);
    for (const Share& share : shares) {
      plan_.gathered_bytes[share.holders.front().rank] += Volume(share.part) * element_bytes;
    }
  }
  for (const Part& part : need) DWS_RETURN_IF_ERROR(AddPart(tensor, part, shares));
  return OkStatus();
}

// A counting sort by hop and pair: stable, and linear in the millions of regions.
void Planner::SortRegions() {
  const size_t ranks = std::max(source_.rank_count, destination_.rank_count);
  const auto key = [&](const Region& region) {
    return (static_cast<size_t>(region.hop) * ranks + region.source) * destination_.rank_count +
           region.destination;
  };
  std::vector<size_t> begins(2 * ranks * destination_.rank_count + 1, 0);
  for (const Region& region : plan_.regions) ++begins[key(region) + 1];
  std::partial_sum(begins.begin(), begins.end(), begins.begin());
  std::vector<Region> sorted(plan_.regions.size());
  for (const Region& region : plan_.regions) sorted[begins[key(region)]++] = region;
  plan_.regions = std::move(sorted);
}

// Every element of what a destination is to hold must be on one of its ranks, else a plan that
// writes all that is held would prove nothing.
Status CheckHeldWhole(const MeshLayout& destination) {
  for (const MeshTensor& tensor : destination.tensors) {
    for (const Placement& placement : tensor.placements) {
      if (placement.kind == Placement::Kind::kOwner && placement.owners.empty()) {
        return InvalidArgumentError("destination: tensor '{}' has no owner, expected at least one",
                                    tensor.name);
      }
    }
    if (tensor.flat.empty()) continue;
    std::vector<FlatRange> ranges = tensor.flat;
    std::sort(ranges.begin(), ranges.end(),
              [](const FlatRange& a, const FlatRange& b) { return a.begin < b.begin; });
    uint64_t end = 0;
    for (const FlatRange& range : ranges) {
      if (range.begin > end) break;
      end = std::max(end, range.end);
    }
    const uint64_t elements = Volume(WholeBox(tensor.content.shape));
    if (end >= elements) continue;
    return InvalidArgumentError(
        "destination: tensor '{}' has {} elements, and element {} is in no rank's flat range",
        tensor.name, elements, end);
  }
  return OkStatus();
}

// Of the canonical tensor, by the pieces of the destination's tensors, which are held whole.
bool WantedWhole(const std::vector<uint64_t>& shape, const std::vector<Part>& needed) {
  std::vector<Stripes> parts;
  for (const Part& part : needed) parts.push_back(part.fragment.part);
  return !FindHole(OneBlock(WholeBox(shape)), parts).has_value();
}

Result<Plan> Planner::Make() {
  DWS_ASSIGN_OR_RETURN(const PartIndex have, PartIndex::Create(source_, catalogue_.size()));
  DWS_ASSIGN_OR_RETURN(const PartIndex need, PartIndex::Create(destination_, catalogue_.size()));
  plan_.policy = options_.policy;
  plan_.source_generations = source_.generations;
  plan_.destination_generations = destination_.generations;
  plan_.gathered_bytes.resize(source_.rank_count, 0);
  if (options_.policy == SharePolicy::kBroadcast) plan_.whole_takers = WholeTakers();
  for (const uint32_t tensor : Order(have)) {
    DWS_ASSIGN_OR_RETURN(const std::vector<Part> needed, need.PartsOf(tensor));
    if (!WantedWhole(catalogue_[tensor].shape, needed)) plan_.not_wanted.push_back(tensor);
    if (needed.empty()) continue;
    DWS_ASSIGN_OR_RETURN(const std::vector<Part> held, have.PartsOf(tensor));
    DWS_RETURN_IF_ERROR(AddTensor(tensor, held, needed));
  }
  std::sort(plan_.not_wanted.begin(), plan_.not_wanted.end());
  SortRegions();
  uint64_t written = 0;
  for (const Region& region : plan_.regions) written += plan_.BytesOf(region);
  DWS_CHECK(written == plan_.covered_bytes);
  return std::move(plan_);
}

bool Differ(std::span<const uint64_t> a, std::span<const uint64_t> b) {
  return !std::equal(a.begin(), a.end(), b.begin(), b.end());
}

}  // namespace

uint64_t Plan::RunsOf(const Region& region) const {
  uint64_t runs = 1;
  for (const Loop& loop : LoopsOf(region)) runs *= loop.count;
  return runs;
}

bool Plan::IsStale(std::span<const uint64_t> source, std::span<const uint64_t> destination) const {
  return Differ(source, source_generations) || Differ(destination, destination_generations);
}

Result<Plan> MakePlan(const Catalogue& catalogue, const MeshLayout& source,
                      const MeshLayout& destination, const PlanOptions& options) {
  DWS_RETURN_IF_ERROR(Validate(catalogue));
  DWS_RETURN_IF_ERROR(Annotate(Validate(catalogue, source), "source"));
  DWS_RETURN_IF_ERROR(Annotate(Validate(catalogue, destination), "destination"));
  DWS_RETURN_IF_ERROR(CheckHeldWhole(destination));
  DWS_ASSIGN_OR_RETURN(Plan plan, Planner(catalogue, source, destination, options).Make());
  const Digest from = DigestOf(catalogue, source);
  const Digest to = DigestOf(catalogue, destination);
  const std::array<uint64_t, 7> key{from.lane0,
                                    from.lane1,
                                    to.lane0,
                                    to.lane1,
                                    static_cast<uint64_t>(options.policy),
                                    options.once_per_host ? 1U : 0U,
                                    options.share_bytes_min};
  plan.digest = DigestBytes(std::as_bytes(std::span(key)), 0);
  return plan;
}

}  // namespace dws::mesh
