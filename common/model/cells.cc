// Slices are numbered like the digits of a number: the last dimension that is cut is the lowest.
#include "common/model/cells.h"

#include <algorithm>

#include "common/base/check.h"

namespace dws {

CellBox AllCells(const TensorSpec& spec) {
  CellBox cells;
  for (const Cuts& along : spec.cuts) cells.push_back({.first = 0, .count = along.cell_count()});
  return cells;
}

Status CheckCells(const TensorSpec& spec, const CellBox& cells) {
  if (cells.size() != spec.cuts.size()) {
    return InvalidArgumentError("tensor '{}': {} ranges of cells, expected {}: it is {}", spec.name,
                                cells.size(), spec.cuts.size(), ToString(spec));
  }
  for (size_t c = 0; c < cells.size(); ++c) {
    const uint32_t along = spec.cuts[c].cell_count();
    const CellRange range = cells[c];
    if (range.count == 0 || range.first >= along || range.count > along - range.first) {
      return InvalidArgumentError("tensor '{}': slices {} + {} on dim {} are outside its {}: {}",
                                  spec.name, range.first, range.count, spec.cuts[c].dim, along,
                                  ToString(spec));
    }
  }
  return OkStatus();
}

uint32_t CellCount(const CellBox& cells) {
  uint32_t count = 1;
  for (const CellRange& range : cells) count *= range.count;
  return count;
}

std::vector<uint32_t> SlicesIn(const TensorSpec& spec, const CellBox& cells) {
  DWS_CHECK(cells.size() == spec.cuts.size());
  std::vector<uint32_t> slices = {0};
  for (size_t c = 0; c < cells.size(); ++c) {
    std::vector<uint32_t> finer;
    finer.reserve(slices.size() * cells[c].count);
    for (const uint32_t slice : slices) {
      for (uint32_t cell = cells[c].first; cell < cells[c].end(); ++cell) {
        finer.push_back(slice * spec.cuts[c].cell_count() + cell);
      }
    }
    slices = std::move(finer);
  }
  return slices;
}

std::optional<uint32_t> NumberIn(const TensorSpec& spec, const CellBox& cells, uint32_t slice) {
  DWS_CHECK(cells.size() == spec.cuts.size());
  uint32_t number = 0;
  uint32_t stride = 1;
  for (size_t c = cells.size(); c-- > 0;) {
    const uint32_t cell = slice % spec.cuts[c].cell_count();
    slice /= spec.cuts[c].cell_count();
    if (cell < cells[c].first || cell >= cells[c].end()) return std::nullopt;
    number += (cell - cells[c].first) * stride;
    stride *= cells[c].count;
  }
  if (slice != 0) return std::nullopt;  // beyond the last slice
  return number;
}

std::vector<DimRange> RangesOf(const TensorSpec& spec, const CellBox& cells) {
  DWS_CHECK(cells.size() == spec.cuts.size());
  std::vector<DimRange> ranges;
  for (const uint64_t whole : spec.shape) ranges.push_back({.begin = 0, .end = whole});
  for (size_t c = 0; c < cells.size(); ++c) {
    const Cuts& along = spec.cuts[c];
    ranges[along.dim] = along.Cells(cells[c].first, cells[c].end(), spec.shape[along.dim]);
  }
  return ranges;
}

std::optional<CellRange> CellsOf(const Cuts& along, uint64_t whole, DimRange range) {
  // Returns the number of cells before `at`.
  const auto boundary = [&](uint64_t at) -> std::optional<uint32_t> {
    if (at == 0) return 0;
    if (at == whole) return along.cell_count();
    const auto found = std::lower_bound(along.at.begin(), along.at.end(), at);
    if (found == along.at.end() || *found != at) return std::nullopt;
    return static_cast<uint32_t>(found - along.at.begin()) + 1;
  };
  const std::optional<uint32_t> begin = boundary(range.begin);
  const std::optional<uint32_t> end = boundary(range.end);
  if (!begin.has_value() || !end.has_value()) return std::nullopt;
  DWS_CHECK(*begin < *end);
  return CellRange{.first = *begin, .count = *end - *begin};
}

std::string ToString(const TensorSpec& spec, const CellBox& cells) {
  DWS_CHECK(cells.size() == spec.cuts.size());
  if (cells.empty()) return "slices 0 + 1";
  if (cells.size() == 1) return fmt::format("slices {} + {}", cells[0].first, cells[0].count);
  std::string text = "cells";
  for (size_t c = 0; c < cells.size(); ++c) {
    text += fmt::format("{} {} + {} on dim {}", c == 0 ? "" : ",", cells[c].first, cells[c].count,
                        spec.cuts[c].dim);
  }
  return text;
}

}  // namespace dws
