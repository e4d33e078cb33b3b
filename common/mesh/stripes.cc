#include "common/mesh/stripes.h"

#include <algorithm>
#include <numeric>

#include "common/base/check.h"

namespace dws::mesh {
namespace {

void Append(Box box, uint64_t count, const Stripes& like, std::vector<Stripes>& out) {
  if (count == 0 || Volume(box) == 0) return;
  out.push_back(count == 1
                    ? OneBlock(box)
                    : Stripes{.box = box, .count = count, .step = like.step, .dim = like.dim});
}

// Both repeat with one step, so block i of `a` meets block i + k of `b` in the same way for all i;
// at most two values of k meet at all.
void IntersectEqualSteps(const Stripes& a, const Stripes& b, std::vector<Stripes>& out) {
  const size_t dim = a.dim;
  Box plain_a = a.box;
  Box plain_b = b.box;
  plain_a.lo[dim] = plain_b.lo[dim] = 0;
  plain_a.extent[dim] = plain_b.extent[dim] = 1;
  const std::optional<Box> rest = Intersect(plain_a, plain_b);
  if (!rest.has_value()) return;
  const auto step = static_cast<int64_t>(a.step);
  const auto extent_a = static_cast<int64_t>(a.box.extent[dim]);
  const auto extent_b = static_cast<int64_t>(b.box.extent[dim]);
  const auto count_a = static_cast<int64_t>(a.count);
  const auto count_b = static_cast<int64_t>(b.count);
  const int64_t apart = static_cast<int64_t>(b.box.lo[dim]) - static_cast<int64_t>(a.box.lo[dim]);
  const int64_t nearest = -apart / step;
  for (int64_t k = nearest - 2; k <= nearest + 2; ++k) {
    const int64_t begin = std::max<int64_t>(0, apart + k * step);
    const int64_t end = std::min(extent_a, apart + k * step + extent_b);
    const int64_t first = std::max<int64_t>(0, -k);
    const int64_t last = std::min(count_a, count_b - k);
    if (begin >= end || first >= last) continue;
    Box box = *rest;
    box.lo[dim] = a.box.lo[dim] + static_cast<uint64_t>(first * step + begin);
    box.extent[dim] = static_cast<uint64_t>(end - begin);
    Append(box, static_cast<uint64_t>(last - first), a, out);
  }
}

size_t RowDim(const Stripes& stripes) {
  for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
    if (stripes.box.extent[d] > 1 || (stripes.count > 1 && d == stripes.dim)) return d;
  }
  return 0;
}

// Where row `row` begins; for the number of rows, where the last one ends.
uint64_t RowPosition(const Stripes& stripes, size_t dim, uint64_t row) {
  const uint64_t lo = stripes.box.lo[dim];
  if (stripes.count == 1 || dim != stripes.dim) return lo + row;
  const uint64_t extent = stripes.box.extent[dim];
  return lo + row / extent * stripes.step + row % extent;
}

}  // namespace

uint64_t Volume(const Stripes& stripes) { return stripes.count * Volume(stripes.box); }

Box Block(const Stripes& stripes, uint64_t block) {
  Box box = stripes.box;
  box.lo[stripes.dim] += block * stripes.step;
  return box;
}

Box Bounds(const Stripes& stripes) {
  Box box = stripes.box;
  box.extent[stripes.dim] += (stripes.count - 1) * stripes.step;
  return box;
}

void Clip(const Stripes& stripes, const Box& box, std::vector<Stripes>& out) {
  const std::optional<Box> kept = Intersect(Bounds(stripes), box);
  if (!kept.has_value()) return;
  if (stripes.count == 1) return out.push_back(OneBlock(*kept));
  const size_t dim = stripes.dim;
  const uint64_t lo = stripes.box.lo[dim];
  const uint64_t extent = stripes.box.extent[dim];
  const uint64_t begin = kept->lo[dim] - lo;  // from the first block
  const uint64_t end = begin + kept->extent[dim];
  uint64_t first = begin / stripes.step;
  uint64_t last = (end - 1) / stripes.step;
  const auto append = [&](uint64_t block, uint64_t count, uint64_t from, uint64_t to) {
    if (from >= to) return;
    Box part = *kept;
    part.lo[dim] = lo + block * stripes.step + from;
    part.extent[dim] = to - from;
    Append(part, count, stripes, out);
  };
  const uint64_t from = begin - first * stripes.step;               // in the first block
  const uint64_t to = std::min(extent, end - last * stripes.step);  // in the last
  if (first == last) return append(first, 1, from, to);
  if (from > 0) append(first++, 1, from, extent);
  const bool cut = to < extent;
  append(first, last + (cut ? 0 : 1) - first, 0, extent);
  if (cut) append(last, 1, 0, to);
}

void Intersect(const Stripes& a, const Stripes& b, std::vector<Stripes>& out) {
  if (b.count == 1) return Clip(a, b.box, out);
  if (a.count == 1) return Clip(b, a.box, out);
  if (a.dim == b.dim && a.step == b.step) return IntersectEqualSteps(a, b, out);
  const Stripes& fewer = a.count <= b.count ? a : b;
  const Stripes& more = a.count <= b.count ? b : a;
  if (!Intersect(Bounds(a), Bounds(b)).has_value()) return;
  for (uint64_t block = 0; block < fewer.count; ++block) Clip(more, Block(fewer, block), out);
}

void Subtract(const Stripes& stripes, const Box& box, std::vector<Stripes>& out) {
  Box rest = Bounds(stripes);
  const std::optional<Box> hole = Intersect(rest, box);
  if (!hole.has_value()) return out.push_back(stripes);
  // Before and after the hole in one dimension; then the next dimension, beside the hole only.
  for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
    const uint64_t end = rest.lo[d] + rest.extent[d];
    Box side = rest;
    side.extent[d] = hole->lo[d] - rest.lo[d];
    Clip(stripes, side, out);
    side.lo[d] = hole->lo[d] + hole->extent[d];
    side.extent[d] = end - side.lo[d];
    Clip(stripes, side, out);
    rest.lo[d] = hole->lo[d];
    rest.extent[d] = hole->extent[d];
  }
}

std::vector<Stripes> Without(const std::vector<Stripes>& parts, const Stripes& taken) {
  std::vector<Stripes> rest;
  for (const Stripes& part : parts) Subtract(part, Bounds(taken), rest);
  const uint64_t gap = taken.step - taken.box.extent[taken.dim];
  if (taken.count == 1 || gap == 0) return rest;
  // The gaps between the blocks are stripes, too.
  Stripes gaps = taken;
  gaps.box.lo[taken.dim] += taken.box.extent[taken.dim];
  gaps.box.extent[taken.dim] = gap;
  if (--gaps.count == 1) gaps = OneBlock(gaps.box);
  for (const Stripes& part : parts) Intersect(part, gaps, rest);
  return rest;
}

uint64_t RowCount(const Stripes& stripes) {
  const size_t dim = RowDim(stripes);
  return stripes.box.extent[dim] * (dim == stripes.dim ? stripes.count : 1);
}

void CutRows(const Stripes& stripes, uint64_t begin, uint64_t end, std::vector<Stripes>& out) {
  if (begin >= end) return;
  const size_t dim = RowDim(stripes);
  Box part = Bounds(stripes);
  part.lo[dim] = RowPosition(stripes, dim, begin);
  part.extent[dim] = RowPosition(stripes, dim, end - 1) + 1 - part.lo[dim];
  Clip(stripes, part, out);
}

std::optional<Box> FindOverlap(const std::vector<Stripes>& parts) {
  if (parts.size() < 2) return std::nullopt;
  std::vector<Box> bounds;
  for (const Stripes& part : parts) bounds.push_back(Bounds(part));
  // Sorted along the dimension with most different beginnings, few parts can meet the one before.
  std::vector<size_t> best;
  size_t best_dim = 0;
  uint64_t best_distinct = 0;
  for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
    const bool differs = std::any_of(bounds.begin(), bounds.end(), [&](const Box& box) {
      return box.lo[d] != bounds.front().lo[d];
    });
    if (best_distinct > 0 && !differs) continue;
    std::vector<size_t> order(parts.size());
    std::iota(order.begin(), order.end(), 0);
    const auto lo = [&](size_t i) { return bounds[i].lo[d]; };
    std::stable_sort(order.begin(), order.end(), [&](size_t a, size_t b) { return lo(a) < lo(b); });
    uint64_t distinct = 1;
    for (size_t i = 1; i < order.size(); ++i) distinct += lo(order[i]) != lo(order[i - 1]) ? 1 : 0;
    if (distinct <= best_distinct) continue;
    best_distinct = distinct;
    best_dim = d;
    best = std::move(order);
  }
  std::vector<Stripes> both;
  for (size_t i = 0; i < best.size(); ++i) {
    const Box& box = bounds[best[i]];
    for (size_t j = i + 1; j < best.size(); ++j) {
      if (bounds[best[j]].lo[best_dim] >= box.lo[best_dim] + box.extent[best_dim]) break;
      Intersect(parts[best[i]], parts[best[j]], both);
      if (!both.empty()) return both.front().box;
    }
  }
  return std::nullopt;
}

std::optional<Box> FindHole(const Stripes& whole, const std::vector<Stripes>& parts) {
  if (Volume(whole) == 0) return std::nullopt;
  // Depth first: what is left of `whole`, and the first part that it was not compared with.
  std::vector<std::pair<Stripes, size_t>> left{{whole, 0}};
  while (!left.empty()) {
    auto [rest, next] = left.back();
    left.pop_back();
    const Box bounds = Bounds(rest);
    while (next < parts.size() && !Intersect(bounds, Bounds(parts[next])).has_value()) ++next;
    if (next == parts.size()) return rest.box;
    const std::vector<Stripes> outside = Without({rest}, parts[next]);
    for (size_t i = outside.size(); i-- > 0;) left.emplace_back(outside[i], next + 1);
  }
  return std::nullopt;
}

bool CoverOnce(const std::vector<Stripes>& parts, const Stripes& whole) {
  uint64_t elements = 0;
  std::vector<Stripes> inside;
  for (const Stripes& part : parts) {
    elements += Volume(part);
    Intersect(part, whole, inside);
  }
  uint64_t elements_inside = 0;
  for (const Stripes& part : inside) elements_inside += Volume(part);
  return elements == Volume(whole) && elements_inside == elements &&
         !FindOverlap(parts).has_value();
}

}  // namespace dws::mesh
