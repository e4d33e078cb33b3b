#include "common/mesh/fragment.h"

#include <algorithm>

#include "common/base/check.h"

namespace dws::mesh {
namespace {

// Where the element at `index`, which the fragment contains, is in memory.
uint64_t OffsetOf(const Fragment& fragment, const Index& index) {
  const Stripes& part = fragment.part;
  uint64_t offset = fragment.offset;
  for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
    uint64_t distance = index[d] - part.box.lo[d];
    if (part.count > 1 && d == part.dim) {
      offset += distance / part.step * fragment.block_step;
      distance %= part.step;
    }
    offset += distance * fragment.strides[d];
  }
  return offset;
}

// From one block of `part` to the next in the memory of a fragment that contains it.
uint64_t BlockStep(const Fragment& fragment, const Stripes& part) {
  const Stripes& own = fragment.part;
  if (own.count > 1 && own.dim == part.dim && part.step % own.step == 0) {
    return part.step / own.step * fragment.block_step;
  }
  return part.step * fragment.strides[part.dim];  // all of `part` is in one block
}

// Loops that continue where the loop inside them ends become one with it.
void MergeLoops(Copy& copy) {
  std::vector<Loop>& loops = copy.loops;
  std::sort(loops.begin(), loops.end(), [](const Loop& a, const Loop& b) {
    return a.destination_stride != b.destination_stride
               ? a.destination_stride > b.destination_stride
               : a.source_stride > b.source_stride;
  });
  while (!loops.empty() && loops.back().source_stride == copy.inner_bytes &&
         loops.back().destination_stride == copy.inner_bytes) {
    copy.inner_bytes *= loops.back().count;
    loops.pop_back();
  }
  for (size_t i = loops.size(); i-- > 1;) {
    Loop& outer = loops[i - 1];
    const Loop& inner = loops[i];
    if (outer.source_stride != inner.count * inner.source_stride ||
        outer.destination_stride != inner.count * inner.destination_stride) {
      continue;
    }
    outer = {.count = outer.count * inner.count,
             .source_stride = inner.source_stride,
             .destination_stride = inner.destination_stride};
    loops.erase(loops.begin() + static_cast<std::ptrdiff_t>(i));
  }
}

}  // namespace

void AppendFragments(const Piece& piece, const LocalBox& local, std::vector<Fragment>& out) {
  std::vector<Piece> pieces;
  ClipPiece(piece, local.box, pieces);
  for (const Piece& held : pieces) {
    Fragment fragment{.offset = local.offset};
    for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
      fragment.offset += (held.own.box.lo[d] - local.box.lo[d]) * local.strides[d];
    }
    fragment.part = {.box = {.lo = held.lo}, .count = held.own.count, .step = held.step};
    for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
      const size_t own_dim = held.axis[d];
      if (own_dim == kNoAxis) continue;
      fragment.part.box.extent[d] = held.own.box.extent[own_dim];
      fragment.strides[d] = local.strides[own_dim];
      if (held.own.count > 1 && own_dim == held.own.dim) fragment.part.dim = d;
    }
    if (held.own.count > 1) fragment.block_step = held.own.step * local.strides[held.own.dim];
    out.push_back(fragment);
  }
}

Copy CopyOf(const Fragment& source, const Fragment& destination, const Stripes& part,
            uint32_t element_bytes) {
  Copy copy{.source_offset = OffsetOf(source, part.box.lo) * element_bytes,
            .destination_offset = OffsetOf(destination, part.box.lo) * element_bytes,
            .inner_bytes = element_bytes};
  for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
    if (part.box.extent[d] == 1) continue;
    copy.loops.push_back({.count = part.box.extent[d],
                          .source_stride = source.strides[d] * element_bytes,
                          .destination_stride = destination.strides[d] * element_bytes});
  }
  if (part.count > 1) {
    copy.loops.push_back({.count = part.count,
                          .source_stride = BlockStep(source, part) * element_bytes,
                          .destination_stride = BlockStep(destination, part) * element_bytes});
  }
  MergeLoops(copy);
  DWS_CHECK(copy.loops.size() <= limits::kBoxDimsMax + 1);
  return copy;
}

}  // namespace dws::mesh
