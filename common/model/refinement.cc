// Boundaries are only added, so what a rank owned is a box of the finer grid, too.
#include "common/model/refinement.h"

#include <algorithm>
#include <iterator>
#include <set>
#include <utility>

#include "common/base/check.h"

namespace dws {
namespace {

Result<Shard> Refined(const Shard& shard, const std::vector<Cuts>& wished) {
  Shard finer{.tensor = shard.tensor, .cells = {}};
  finer.tensor.cuts = UnionOf(shard.tensor.cuts, wished);
  DWS_RETURN_IF_ERROR(Validate(finer.tensor));
  const std::vector<DimRange> owned = RangesOf(shard.tensor, shard.cells);
  for (const Cuts& along : finer.tensor.cuts) {
    const auto cells = CellsOf(along, finer.tensor.shape[along.dim], owned[along.dim]);
    DWS_CHECK(cells.has_value());  // boundaries of the owned part are never removed
    finer.cells.push_back(*cells);
  }
  return finer;
}

// The levels of stride of a box inside a row-major array, from the last dimension to the first: as
// CoalesceRuns finds them, but by the extents alone.
struct Levels {
  bool gap = false;  // between what the dimensions so far have and the next of it
  uint32_t strides = 0;

  Levels And(uint64_t part, uint64_t held) const {
    Levels next = *this;
    if (part > 1 && std::exchange(next.gap, false)) next.strides = std::min(strides + 1, 2U);
    next.gap |= part < held;
    return next;
  }
  bool CanBeMapped() const { return strides < 2; }

  friend auto operator<=>(const Levels&, const Levels&) = default;
};

// What two grids have of one dimension: a cell of the coarser one, and one of the finer inside it.
struct Widths {
  uint64_t coarse = 0;
  uint64_t fine = 0;

  friend auto operator<=>(const Widths&, const Widths&) = default;
};

std::set<Widths> WidthsOf(const TensorSpec& coarse, const TensorSpec& finer, uint32_t dim) {
  const auto along = [dim](const TensorSpec& spec) {
    const auto found = std::ranges::find(spec.cuts, dim, &Cuts::dim);
    return found == spec.cuts.end() ? Cuts{.dim = dim, .at = {}} : *found;
  };
  const Cuts outer = along(coarse);
  const Cuts inner = along(finer);
  const uint64_t whole = finer.shape[dim];
  std::set<Widths> widths;
  for (uint32_t o = 0, i = 0; i < inner.cell_count(); ++i) {
    const DimRange part = inner.Cells(i, i + 1, whole);
    while (outer.Cells(o, o + 1, whole).end < part.end) ++o;
    widths.insert({.coarse = outer.Cells(o, o + 1, whole).size(), .fine = part.size()});
  }
  return widths;
}

// An array is as wide as the cell or wider, on each dimension; how much wider makes no difference.
bool KeepsParts(const TensorSpec& coarse, const TensorSpec& finer) {
  using OfBoth = std::pair<Levels, Levels>;
  std::set<OfBoth> found = {{}};  // a cell of the coarser grid in any array, and any of its parts
  for (auto dim = static_cast<uint32_t>(finer.shape.size()); dim-- > 0;) {
    const std::set<Widths> widths = WidthsOf(coarse, finer, dim);
    std::set<OfBoth> next;
    for (const auto& [cell, part] : found) {
      for (const Widths& width : widths) {
        for (const uint64_t held : {width.coarse, finer.shape[dim]}) {
          next.emplace(cell.And(width.coarse, held), part.And(width.fine, held));
        }
      }
    }
    found = std::move(next);
  }
  return std::ranges::none_of(found, [](const OfBoth& each) {
    return each.first.CanBeMapped() && !each.second.CanBeMapped();
  });
}

}  // namespace

std::vector<Cuts> Without(const std::vector<Cuts>& wished, const std::vector<Cuts>& known) {
  std::vector<Cuts> missing;
  for (const Cuts& along : wished) {
    const auto same = std::ranges::find(known, along.dim, &Cuts::dim);
    std::vector<uint64_t> at;
    std::ranges::set_difference(along.at, same == known.end() ? std::vector<uint64_t>() : same->at,
                                std::back_inserter(at));
    if (!at.empty()) missing.push_back({.dim = along.dim, .at = std::move(at)});
  }
  return missing;
}

std::vector<Cuts> UnionOf(const std::vector<Cuts>& a, const std::vector<Cuts>& b) {
  std::map<uint32_t, std::vector<uint64_t>> by_dim;
  for (const std::vector<Cuts>* const side : {&a, &b}) {
    for (const Cuts& along : *side) {
      std::vector<uint64_t>& at = by_dim[along.dim];
      std::vector<uint64_t> both;
      std::ranges::set_union(at, along.at, std::back_inserter(both));
      at = std::move(both);
    }
  }
  std::vector<Cuts> cuts;
  for (auto& [dim, at] : by_dim) {
    if (!at.empty()) cuts.push_back({.dim = dim, .at = std::move(at)});
  }
  return cuts;
}

bool Merge(CutWishes& wishes, const std::string& tensor, const std::vector<Cuts>& cuts) {
  std::vector<Cuts>& known = wishes[tensor];
  if (known == cuts) return false;  // the common case
  std::vector<Cuts> both = UnionOf(known, cuts);
  const bool more = both != known;
  known = std::move(both);
  return more;
}

bool Merge(CutWishes& wishes, const CutWishes& more) {
  bool any = false;
  for (const auto& [tensor, cuts] : more) any |= Merge(wishes, tensor, cuts);
  return any;
}

CutWishes Lacking(const RankLayout& layout, const CutWishes& wishes) {
  CutWishes lacking;
  for (const auto& [tensor, wished] : wishes) {
    const auto shard = std::ranges::lower_bound(
        layout.shards(), tensor, {},
        [](const Shard& each) -> const std::string& { return each.tensor.name; });
    if (shard == layout.shards().end() || shard->tensor.name != tensor) continue;
    std::vector<Cuts> missing = Without(wished, shard->tensor.cuts);
    if (!missing.empty()) lacking.emplace_hint(lacking.end(), tensor, std::move(missing));
  }
  return lacking;
}

Result<RankLayout> Refined(const RankLayout& layout, const CutWishes& wishes) {
  std::vector<Shard> shards;
  shards.reserve(layout.shards().size());
  for (const Shard& shard : layout.shards()) {
    const auto wished = wishes.find(shard.tensor.name);
    if (wished == wishes.end()) {
      shards.push_back(shard);
      continue;
    }
    DWS_ASSIGN_OR_RETURN(shards.emplace_back(), Refined(shard, wished->second));
  }
  return RankLayout::Create(std::move(shards), layout.view());
}

Status CheckKeepsParts(const RankLayout& layout, const RankLayout& finer) {
  DWS_CHECK(SameButCuts(layout, finer));
  for (size_t s = 0; s < finer.shards().size(); ++s) {
    const TensorSpec& known = layout.shards()[s].tensor;
    const TensorSpec& tensor = finer.shards()[s].tensor;
    if (tensor.cuts == known.cuts || tensor.ElementCount() == 0 || KeepsParts(known, tensor)) {
      continue;
    }
    return InvalidArgumentError(
        "tensor '{}' is {} and would become {}: arrays that hold larger parts of it, the trainer's "
        "or an engine's, could not be mapped any more, because these slices of them would not be "
        "runs of one stride. Cut the dimensions before the last one that is cut into single "
        "indices, or only one dimension; if nothing holds such parts, declare all these cuts on "
        "the trainer's side",
        tensor.name, ToString(known), ToString(tensor));
  }
  return OkStatus();
}

bool SameButCuts(const TensorSpec& a, const TensorSpec& b) {
  return a.name == b.name && a.dtype == b.dtype && a.shape == b.shape;
}

bool SameButCuts(const RankLayout& a, const RankLayout& b) {
  return std::ranges::equal(a.shards(), b.shards(), [](const Shard& one, const Shard& other) {
    return SameButCuts(one.tensor, other.tensor) &&
           RangesOf(one.tensor, one.cells) == RangesOf(other.tensor, other.cells);
  });
}

}  // namespace dws
