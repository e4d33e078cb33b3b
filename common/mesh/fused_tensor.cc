#include "common/mesh/fused_tensor.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace dws::mesh {
namespace {

// `shape` with another extent in `dim`.
std::vector<uint64_t> Resized(std::vector<uint64_t> shape, size_t dim, uint64_t extent) {
  DWS_CHECK(dim < shape.size());
  shape[dim] = extent;
  return shape;
}

Piece Moved(Piece piece, size_t dim, uint64_t distance) {
  piece.own.box.lo[dim] += distance;
  return piece;
}

// What the i-th block of `block` indices along `dim` has of the pieces.
std::vector<Piece> PiecesOfBlock(const FusedTensor& tensor, size_t dim, uint64_t block,
                                 uint64_t i) {
  Box box = WholeBox(tensor.shape);
  box.lo[dim] = i * block;
  box.extent[dim] = block;
  std::vector<Piece> clipped;
  for (const Piece& piece : tensor.pieces) ClipPiece(piece, box, clipped);
  return clipped;
}

// A piece without loop becomes a loop over its blocks; any other is cut block by block.
void AppendBlocks(const FusedTensor& part, size_t dim, uint64_t groups, uint64_t at,
                  uint64_t group_step, std::vector<Piece>& out) {
  const uint64_t block = part.shape[dim] / groups;
  // A piece beside padding is not as long as the part.
  const bool spans = part.pieces.size() == 1 && part.pieces[0].own.box.lo[dim] == 0 &&
                     part.pieces[0].own.box.extent[dim] == part.shape[dim];
  if (spans && part.pieces[0].own.count == 1 && groups > 1) {
    Piece piece = Moved(part.pieces[0], dim, at);
    piece.own = {.box = piece.own.box, .count = groups, .step = group_step, .dim = dim};
    piece.own.box.extent[dim] = block;
    piece.step = block;
    return out.push_back(piece);
  }
  for (uint64_t group = 0; group < groups; ++group) {
    for (Piece& piece : PiecesOfBlock(part, dim, block, group)) {
      piece.own.box.lo[dim] -= group * block;
      out.push_back(Moved(piece, dim, at + group * group_step));
    }
  }
}

}  // namespace

void ClipPiece(const Piece& piece, const Box& box, std::vector<Piece>& out) {
  std::vector<Stripes> parts;
  Clip(piece.own, box, parts);
  for (const Stripes& part : parts) {
    Piece clipped = piece;
    clipped.own = part;
    if (part.count == 1) clipped.step = 0;
    // The first block of a part says where it is in the canonical tensor.
    for (size_t d = 0; d < limits::kBoxDimsMax; ++d) {
      const size_t own_dim = piece.axis[d];
      if (own_dim == kNoAxis) continue;
      const uint64_t distance = part.box.lo[own_dim] - piece.own.box.lo[own_dim];
      const bool loops = piece.own.count > 1 && own_dim == piece.own.dim;
      clipped.lo[d] +=
          loops ? distance / piece.own.step * piece.step + distance % piece.own.step : distance;
    }
    out.push_back(clipped);
  }
}

FusedTensor Whole(uint32_t canonical, const std::vector<uint64_t>& shape) {
  return {.shape = shape, .pieces = {{.own = OneBlock(WholeBox(shape)), .canonical = canonical}}};
}

FusedTensor Every(uint32_t canonical, const std::vector<uint64_t>& shape, size_t dim,
                  uint64_t parts, uint64_t first) {
  FusedTensor tensor = Whole(canonical, shape);
  tensor.shape = Resized(shape, dim, shape[dim] / parts);
  DWS_CHECK(shape[dim] % parts == 0 && first < parts);
  Piece& piece = tensor.pieces[0];
  piece.lo[dim] = first;
  piece.own.box.extent[dim] = 1;
  if (tensor.shape[dim] == 1) return tensor;
  piece.own = {.box = piece.own.box, .count = tensor.shape[dim], .step = 1, .dim = dim};
  piece.step = parts;
  return tensor;
}

FusedTensor Row(uint32_t canonical, const std::vector<uint64_t>& shape, uint64_t index) {
  DWS_CHECK(!shape.empty() && index < shape[0]);
  FusedTensor tensor = Whole(canonical, {shape.begin() + 1, shape.end()});
  Piece& piece = tensor.pieces[0];
  piece.axis = {kNoAxis, 0, 1, 2};
  piece.lo[0] = index;
  return tensor;
}

FusedTensor Concat(size_t dim, const std::vector<FusedTensor>& parts) {
  return Interleave(dim, 1, parts);
}

FusedTensor Stack(const std::vector<FusedTensor>& parts) {
  DWS_CHECK(!parts.empty() && parts[0].shape.size() < limits::kBoxDimsMax);
  FusedTensor stacked{.shape = parts[0].shape};
  stacked.shape.insert(stacked.shape.begin(), parts.size());
  for (size_t i = 0; i < parts.size(); ++i) {
    DWS_CHECK(parts[i].shape == parts[0].shape);
    stacked.padding += parts[i].padding;
    for (Piece piece : parts[i].pieces) {
      Box& box = piece.own.box;
      std::shift_right(box.lo.begin(), box.lo.end(), 1);
      std::shift_right(box.extent.begin(), box.extent.end(), 1);
      box.lo[0] = i;
      box.extent[0] = 1;
      if (piece.own.count > 1) ++piece.own.dim;
      for (uint8_t& axis : piece.axis) {
        // The last dimension of a canonical tensor with fewer dimensions has extent 1: none is
        // lost.
        if (axis != kNoAxis && ++axis == limits::kBoxDimsMax) axis = kNoAxis;
      }
      stacked.pieces.push_back(piece);
    }
  }
  return stacked;
}

FusedTensor Transpose(const FusedTensor& tensor, size_t a, size_t b) {
  DWS_CHECK(a < tensor.shape.size() && b < tensor.shape.size());
  const auto swapped = [&](size_t dim) { return dim == a ? b : dim == b ? a : dim; };
  FusedTensor turned = tensor;
  std::swap(turned.shape[a], turned.shape[b]);
  for (Piece& piece : turned.pieces) {
    std::swap(piece.own.box.lo[a], piece.own.box.lo[b]);
    std::swap(piece.own.box.extent[a], piece.own.box.extent[b]);
    if (piece.own.count > 1) piece.own.dim = swapped(piece.own.dim);
    for (uint8_t& axis : piece.axis) {
      if (axis != kNoAxis) axis = static_cast<uint8_t>(swapped(axis));
    }
  }
  return turned;
}

FusedTensor Interleave(size_t dim, uint64_t groups, const std::vector<FusedTensor>& parts) {
  DWS_CHECK(!parts.empty() && groups > 0);
  FusedTensor all{.shape = Resized(parts[0].shape, dim, 0)};
  for (const FusedTensor& part : parts) {
    DWS_CHECK(Resized(part.shape, dim, 0) == Resized(parts[0].shape, dim, 0));
    DWS_CHECK(part.shape[dim] % groups == 0);
    all.shape[dim] += part.shape[dim];
    all.padding += part.padding;
  }
  const uint64_t group_step = all.shape[dim] / groups;
  uint64_t at = 0;
  for (const FusedTensor& part : parts) {
    AppendBlocks(part, dim, groups, at, group_step, all.pieces);
    at += part.shape[dim] / groups;
  }
  return all;
}

FusedTensor Repeat(const FusedTensor& tensor, size_t dim, uint64_t blocks, uint64_t times) {
  FusedTensor repeated = tensor;
  repeated.shape = Resized(tensor.shape, dim, tensor.shape[dim] * times);
  repeated.padding *= times;
  repeated.pieces.clear();
  const uint64_t block = tensor.shape[dim] / blocks;
  DWS_CHECK(tensor.shape[dim] % blocks == 0);
  for (uint64_t i = 0; i < blocks; ++i) {
    for (const Piece& piece : PiecesOfBlock(tensor, dim, block, i)) {
      for (uint64_t copy = 0; copy < times; ++copy) {
        repeated.pieces.push_back(Moved(piece, dim, (i * (times - 1) + copy) * block));
      }
    }
  }
  return repeated;
}

FusedTensor Pad(const FusedTensor& tensor, size_t dim, uint64_t extent) {
  FusedTensor padded = tensor;
  padded.shape = Resized(tensor.shape, dim, extent);
  DWS_CHECK(extent >= tensor.shape[dim]);
  padded.padding += Volume(WholeBox(padded.shape)) - Volume(WholeBox(tensor.shape));
  return padded;
}

FusedTensor Qkv(const FusedTensor& q, const FusedTensor& k, const FusedTensor& v, uint64_t kv_heads,
                uint64_t groups) {
  if (groups <= kv_heads) return Interleave(0, groups, {q, k, v});
  const uint64_t times = groups / kv_heads;
  return Interleave(0, groups, {q, Repeat(k, 0, kv_heads, times), Repeat(v, 0, kv_heads, times)});
}

}  // namespace dws::mesh
