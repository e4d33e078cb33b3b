// Boundaries are only added, so what a rank owned is a box of the finer grid, too.
#include "common/model/refinement.h"

#include <algorithm>
#include <iterator>
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
