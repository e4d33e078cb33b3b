// An element that changed tells what it was before by its step, so an amax that no changed element
// had, and none exceeds, has not moved. Most steps are shorter than the way from the amax of the
// tile to that of the matrix: their elements are not read.
#include "sender_daemon/views/matrix_amax.h"

#include <algorithm>
#include <tuple>
#include <utility>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/model/limits.h"
#include "common/quantise/quantise.h"
#include "sender_daemon/views/steps.h"

namespace dws {
namespace {

uint64_t MatrixElements(const quantise::ViewLayout::Slice& slice) {
  return slice.grid->shape().rows * slice.grid->shape().columns;
}

}  // namespace

std::span<const uint16_t> MatrixAmax::Of(const quantise::ViewLayout::Slice& slice) const {
  if (!slice.matrices.has_value()) return {};
  return shared_[*slice.matrices];
}

void MatrixAmax::Measure(Snapshot& trainer, std::span<const Steps> steps,
                         std::span<const std::vector<uint16_t>> tile_amax, ThreadPool& pool) {
  std::vector<size_t> whole;  // slices
  std::vector<std::pair<size_t, uint32_t>> works;
  for (size_t s = 0; s < view_.slices().size(); ++s) {
    if (!view_.slices()[s].matrices.has_value()) continue;
    if (!steps[s].has_value()) whole.push_back(s);
    for (uint32_t block = 0; steps[s].has_value() && block < steps[s]->size(); ++block) {
      if ((*steps[s])[block].mode != BlockMode::kEmpty) works.emplace_back(s, block);
    }
  }
  pool.ParallelFor(whole.size(), [&](size_t i, size_t) {
    const quantise::ViewLayout::Slice& slice = view_.slices()[whole[i]];
    parts_[whole[i]] =
        quantise::MatrixAmax(ActiveInstructionSet(), *slice.grid, trainer.SliceBytes(slice.from));
  });
  std::vector<Scratch> scratch(pool.worker_count());
  pool.ParallelFor(works.size(), [&](size_t i, size_t worker) {
    const auto [slice, block] = works[i];
    FindMoved(trainer, slice, block, (*steps[slice])[block],
              tile_amax.empty() ? std::span<const uint16_t>() : tile_amax[slice], scratch[worker]);
  });
  std::vector<Moved> found;
  for (const Scratch& one : scratch) found.insert(found.end(), one.moved.begin(), one.moved.end());
  Move(trainer, std::move(found), pool);
}

std::vector<bool> MatrixAmax::Share(const Others& others) {
  std::vector<bool> moved(view_.matrices().size());
  DWS_CHECK(others.size() == moved.size());
  for (size_t m = 0; m < moved.size(); ++m) {
    const quantise::ViewLayout::Matrices& matrices = view_.matrices()[m];
    DWS_CHECK(others[m].size() == (matrices.IsDivided() ? matrices.count : 0));
    std::vector<uint16_t> amax(matrices.count);
    for (size_t i = 0; i < others[m].size(); ++i) amax[i] = others[m][i];
    for (const size_t s : matrices.slices) {
      for (size_t i = 0; i < amax.size(); ++i) amax[i] = std::max(amax[i], parts_[s][i]);
    }
    moved[m] = amax != shared_[m];
    shared_[m] = std::move(amax);
  }
  return moved;
}

void MatrixAmax::FindMoved(Snapshot& trainer, size_t slice, uint32_t block,
                           const EncodedBlock& steps, std::span<const uint16_t> tile_amax,
                           Scratch& scratch) const {
  const quantise::ViewLayout::Slice& of = view_.slices()[slice];
  const RankLayout::SliceEntry& entry = trainer.layout().slice(of.from);
  DecodedBlock& decoded = scratch.decoded;
  DecodeSteps(entry, block, steps, decoded);
  const ByteSpan elements = trainer.BlockBytes(of.from, block);
  const uint64_t first = uint64_t{block} * limits::kBlockElements;
  const uint64_t matrix_elements = MatrixElements(of);
  quantise::TileCursor cursor(*of.grid);
  for (size_t i = 0; i < decoded.positions.size();) {
    const uint64_t matrix = (first + decoded.positions[i]) / matrix_elements;
    const uint64_t end = (matrix + 1) * matrix_elements;
    const uint16_t amax = parts_[slice][matrix];
    // They lie apart: in a loop of their own many are on their way from memory at once.
    scratch.changed.clear();
    for (; i < decoded.positions.size() && first + decoded.positions[i] < end; ++i) {
      const auto step = static_cast<uint16_t>(decoded.values[i]);
      if (!tile_amax.empty()) {
        const uint16_t of_tile = tile_amax[cursor.TileOf(first + decoded.positions[i])];
        if (of_tile + StepLength(step) < amax) continue;
      }
      scratch.changed.push_back(
          {.after = LoadLe<uint16_t>(elements.data() + decoded.positions[i] * sizeof(uint16_t)),
           .step = step});
    }
    uint16_t grown = amax;
    bool shrunk = false;
    for (const Changed& one : scratch.changed) {
      grown = std::max(grown, Magnitude(one.after));
      shrunk = shrunk ||
               (Magnitude(BeforeStep(one.after, one.step)) >= amax && Magnitude(one.after) < amax);
    }
    if (grown > amax) {
      scratch.moved.push_back({.slice = slice, .matrix = matrix, .magnitude = grown});
    } else if (shrunk) {
      scratch.moved.push_back({.slice = slice, .matrix = matrix});
    }
  }
}

void MatrixAmax::Move(Snapshot& trainer, std::vector<Moved> moved, ThreadPool& pool) {
  // The largest growth of a matrix comes first: where one grew, what shrank does not matter.
  std::sort(moved.begin(), moved.end(), [](const Moved& a, const Moved& b) {
    return std::tuple(a.slice, a.matrix, b.magnitude) < std::tuple(b.slice, b.matrix, a.magnitude);
  });
  moved.erase(std::unique(moved.begin(), moved.end(),
                          [](const Moved& a, const Moved& b) {
                            return a.slice == b.slice && a.matrix == b.matrix;
                          }),
              moved.end());
  pool.ParallelFor(moved.size(), [&](size_t i, size_t) {
    const quantise::ViewLayout::Slice& slice = view_.slices()[moved[i].slice];
    const uint64_t bytes = MatrixElements(slice) * sizeof(uint16_t);
    parts_[moved[i].slice][moved[i].matrix] =
        moved[i].magnitude != Moved::kShrunk
            ? moved[i].magnitude
            : quantise::AbsMax(
                  ActiveInstructionSet(),
                  trainer.SliceBytes(slice.from).subspan(moved[i].matrix * bytes, bytes));
  });
}

}  // namespace dws
