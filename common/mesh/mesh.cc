#include "common/mesh/mesh.h"

#include <algorithm>
#include <map>
#include <numeric>

#include "common/base/bytes.h"
#include "common/model/limits.h"

namespace dws::mesh {
namespace {

using Kind = Placement::Kind;

// What a rank holds of one dimension: ranges in the order in which they lie in its memory.
struct Range {
  uint64_t begin = 0;
  uint64_t end = 0;
};
using Ranges = std::vector<Range>;

uint64_t Length(const Ranges& ranges) {
  uint64_t length = 0;
  for (const Range& range : ranges) length += range.end - range.begin;
  return length;
}

// The positions [begin, end) of what `ranges` name, neighbours joined.
void AppendPart(const Ranges& ranges, Range part, Ranges& out) {
  uint64_t at = 0;
  for (const Range& range : ranges) {
    const uint64_t from = std::max(part.begin, at);
    const uint64_t to = std::min(part.end, at + range.end - range.begin);
    if (from < to) {
      const Range taken{.begin = range.begin + from - at, .end = range.begin + to - at};
      if (!out.empty() && out.back().end == taken.begin) {
        out.back().end = taken.end;
      } else {
        out.push_back(taken);
      }
    }
    at += range.end - range.begin;
  }
}

// torch.chunk: chunks of ceil(length / chunks), the last ones short or empty.
Range Chunk(Range range, uint64_t chunks, uint64_t chunk) {
  const uint64_t length = range.end - range.begin;
  const uint64_t size = CeilDiv(length, chunks);
  return {.begin = range.begin + std::min(length, chunk * size),
          .end = range.begin + std::min(length, (chunk + 1) * size)};
}

Ranges Place(const Placement& placement, const Ranges& ranges, uint32_t axis_size,
             uint32_t coordinate) {
  const Range all{.begin = 0, .end = Length(ranges)};
  const uint32_t split = placement.kind == Kind::kStridedShard ? placement.split : 1;
  Ranges out;
  for (uint32_t i = 0; i < split; ++i) {
    AppendPart(ranges, Chunk(Chunk(all, split, i), axis_size, coordinate), out);
  }
  return out;
}

// What a rank holds of each dimension.
using HeldRanges = std::array<Ranges, limits::kBoxDimsMax>;

// How many boxes LocalBoxes makes of them; some number above kHeldBoxesMax if there are more.
uint64_t BoxCount(const HeldRanges& held) {
  uint64_t count = 1;
  for (const Ranges& ranges : held) {
    count *= ranges.size();
    if (count > limits::kHeldBoxesMax) break;  // all four could overflow
  }
  return count;
}

// All combinations of one range a dimension; memory is row-major over all of them together.
std::vector<LocalBox> LocalBoxes(const HeldRanges& held) {
  LocalBox local;
  Index lengths;
  std::array<std::vector<uint64_t>, limits::kBoxDimsMax> begins;  // in memory, of each range
  for (size_t d = 0; d < held.size(); ++d) {
    lengths[d] = 0;
    for (const Range& range : held[d]) {
      begins[d].push_back(lengths[d]);
      lengths[d] += range.end - range.begin;
    }
  }
  local.strides = RowMajorStrides(lengths);
  std::vector<LocalBox> boxes(BoxCount(held));
  for (size_t i = 0; i < boxes.size(); ++i) {
    size_t rest = i;
    local.offset = 0;
    for (size_t d = held.size(); d-- > 0;) {
      const size_t which = rest % held[d].size();
      rest /= held[d].size();
      local.box.lo[d] = held[d][which].begin;
      local.box.extent[d] = held[d][which].end - held[d][which].begin;
      local.offset += begins[d][which] * local.strides[d];
    }
    boxes[i] = local;
  }
  return boxes;
}

// A dimension without ranges: the rank holds nothing.
HeldRanges RangesOf(const Mesh& mesh, const std::vector<Placement>& placements, const Box& whole,
                    const std::vector<uint32_t>& coordinates) {
  HeldRanges held;
  for (size_t d = 0; d < held.size(); ++d) held[d] = {{.begin = 0, .end = whole.extent[d]}};
  for (size_t a = 0; a < placements.size(); ++a) {
    const Placement& placement = placements[a];
    if (placement.kind != Kind::kShard && placement.kind != Kind::kStridedShard) continue;
    Ranges& ranges = held[placement.dim];
    ranges = Place(placement, ranges, mesh.axes[a].size, coordinates[a]);
  }
  return held;
}

Status CheckPlacements(const Mesh& mesh, const std::vector<Placement>& placements,
                       const std::vector<uint64_t>& shape) {
  if (placements.size() != mesh.axes.size()) {
    return InvalidArgumentError("{} placements, expected one for each of the mesh's {} axes",
                                placements.size(), mesh.axes.size());
  }
  for (size_t a = 0; a < placements.size(); ++a) {
    const Placement& placement = placements[a];
    const Axis& axis = mesh.axes[a];
    const bool cuts = placement.kind == Kind::kShard || placement.kind == Kind::kStridedShard;
    if (cuts && placement.dim >= shape.size()) {
      return InvalidArgumentError("axis '{}' cuts dimension {} of a tensor with {}", axis.name,
                                  placement.dim, shape.size());
    }
    if (placement.kind == Kind::kStridedShard &&
        (placement.split == 0 || placement.split > limits::kWorldSizeMax)) {
      return InvalidArgumentError("axis '{}' has a split of {}, expected 1 to {}", axis.name,
                                  placement.split, limits::kWorldSizeMax);
    }
    for (const uint32_t owner : placement.owners) {
      if (owner < axis.size) continue;
      return InvalidArgumentError("coordinate {} of axis '{}' owns a tensor, the axis has size {}",
                                  owner, axis.name, axis.size);
    }
  }
  return OkStatus();
}

std::vector<uint32_t> CoordinatesOf(const Mesh& mesh, size_t position) {
  std::vector<uint32_t> coordinates(mesh.axes.size());
  for (size_t a = mesh.axes.size(); a-- > 0;) {
    coordinates[a] = static_cast<uint32_t>(position % mesh.axes[a].size);
    position /= mesh.axes[a].size;
  }
  return coordinates;
}

}  // namespace

Status Validate(const Mesh& mesh, uint32_t rank_count) {
  if (mesh.axes.size() > limits::kMeshAxesMax) {
    return InvalidArgumentError("a mesh has {} axes, at most {} are supported", mesh.axes.size(),
                                limits::kMeshAxesMax);
  }
  uint64_t positions = 1;
  for (const Axis& axis : mesh.axes) {
    if (axis.size == 0 || axis.size > limits::kWorldSizeMax) {
      return InvalidArgumentError("axis '{}' has size {}, expected 1 to {}", axis.name, axis.size,
                                  limits::kWorldSizeMax);
    }
    positions *= axis.size;
    if (positions > limits::kWorldSizeMax) break;
  }
  if (positions != mesh.ranks.size()) {
    return InvalidArgumentError("a mesh has {} ranks, its axes have room for {}", mesh.ranks.size(),
                                positions);
  }
  std::vector<bool> seen(rank_count, false);
  for (const uint32_t rank : mesh.ranks) {
    if (rank >= rank_count || seen[rank]) {
      return InvalidArgumentError("a mesh names rank {}, expected each of {} ranks at most once",
                                  rank, rank_count);
    }
    seen[rank] = true;
  }
  return OkStatus();
}

Result<std::vector<Holding>> HoldingsOf(const Mesh& mesh, const std::vector<Placement>& placements,
                                        const std::vector<uint64_t>& shape) {
  DWS_RETURN_IF_ERROR(CheckPlacements(mesh, placements, shape));
  const Box whole = WholeBox(shape);
  std::vector<Holding> holdings;
  if (Volume(whole) == 0) return holdings;
  // Ranks with the same coordinates on the axes that cut hold the same.
  std::map<std::vector<uint32_t>, size_t> places;
  size_t box_count = 0;
  for (size_t position = 0; position < mesh.ranks.size(); ++position) {
    std::vector<uint32_t> coordinates = CoordinatesOf(mesh, position);
    bool holds = true;
    for (size_t a = 0; a < placements.size() && holds; ++a) {
      const std::vector<uint32_t>& owners = placements[a].owners;
      if (placements[a].kind == Kind::kOwner) {
        holds = std::find(owners.begin(), owners.end(), coordinates[a]) != owners.end();
      }
      if (placements[a].kind == Kind::kOwner || placements[a].kind == Kind::kReplicate) {
        coordinates[a] = 0;
      }
    }
    if (!holds) continue;
    const auto [place, is_new] = places.try_emplace(coordinates, holdings.size());
    if (is_new) {
      const HeldRanges held = RangesOf(mesh, placements, whole, coordinates);
      box_count += BoxCount(held);
      if (box_count > limits::kHeldBoxesMax) {
        return ResourceExhaustedError("placements divide a tensor into more than {} boxes",
                                      limits::kHeldBoxesMax);
      }
      holdings.push_back({.ranks = {}, .boxes = LocalBoxes(held)});
    }
    holdings[place->second].ranks.push_back(mesh.ranks[position]);
  }
  std::erase_if(holdings, [](const Holding& holding) { return holding.boxes.empty(); });
  return holdings;
}

Result<std::vector<Holding>> HoldingsOf(const std::vector<FlatRange>& ranges,
                                        const std::vector<uint64_t>& shape) {
  const Box whole = WholeBox(shape);
  const Index strides = RowMajorStrides(whole.extent);
  std::map<std::pair<uint64_t, uint64_t>, Holding> holdings;
  for (const FlatRange& range : ranges) {
    if (range.begin > range.end || range.end > Volume(whole)) {
      return InvalidArgumentError("rank {} holds elements {} to {} of a tensor with {}", range.rank,
                                  range.begin, range.end, Volume(whole));
    }
    Holding& holding = holdings[{range.begin, range.end}];
    holding.ranks.push_back(range.rank);
    if (!holding.boxes.empty()) continue;
    for (const Box& box : FlatRangeBoxes(shape, range.begin, range.end)) {
      const uint64_t first =
          std::inner_product(box.lo.begin(), box.lo.end(), strides.begin(), uint64_t{0});
      holding.boxes.push_back({.box = box, .offset = first - range.begin, .strides = strides});
    }
  }
  std::vector<Holding> out;
  for (auto& [range, holding] : holdings) {
    if (!holding.boxes.empty()) out.push_back(std::move(holding));
  }
  return out;
}

}  // namespace dws::mesh
