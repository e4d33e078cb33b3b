// The rules that map tensors of a checkpoint (canonical tensors) to the tensors of a trainer or an
// engine: a fused tensor is a list of pieces, each an affine map between boxes. Pure.
//
// The functions below are the whole vocabulary. What bridges between trainers and checkpoints call
// rename, alias or tied is Whole; stacked experts and gate with up are Stack; QKV is Qkv; key and
// value heads that several ranks need are Repeat; a padded vocabulary is Pad.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "common/mesh/stripes.h"

namespace dws::mesh {

inline constexpr uint8_t kNoAxis = 0xFF;

// Which elements of a fused tensor are which of a canonical one.
struct Piece {
  Stripes own;             // of the fused tensor
  uint32_t canonical = 0;  // number of the canonical tensor
  Index lo{};              // of it, where the first block begins
  uint64_t step = 0;       // of it, from a block to the next; 0 for one block
  // For each canonical dimension, that of the fused tensor which runs along it; kNoAxis: the piece
  // has one index of it.
  std::array<uint8_t, limits::kBoxDimsMax> axis{0, 1, 2, 3};

  friend bool operator==(const Piece&, const Piece&) = default;
};

// A tensor as a trainer or an engine has it, before it is cut over ranks.
struct FusedTensor {
  std::vector<uint64_t> shape;
  std::vector<Piece> pieces;  // disjoint in the fused tensor
  uint64_t padding = 0;       // elements that belong to no piece

  friend bool operator==(const FusedTensor&, const FusedTensor&) = default;
};

// Appends what `box` of the fused tensor contains of a piece: at most 3.
void ClipPiece(const Piece& piece, const Box& box, std::vector<Piece>& out);

// The functions below CHECK that shapes fit: they are called with shapes that the caller made.

// A canonical tensor as it is, under whatever name.
FusedTensor Whole(uint32_t canonical, const std::vector<uint64_t>& shape);
// Every `parts`-th index of `dim`, from `first`.
FusedTensor Every(uint32_t canonical, const std::vector<uint64_t>& shape, size_t dim,
                  uint64_t parts, uint64_t first);
// One index of the first dimension, without that dimension.
FusedTensor Row(uint32_t canonical, const std::vector<uint64_t>& shape, uint64_t index);
// One after the other along `dim`.
FusedTensor Concat(size_t dim, const std::vector<FusedTensor>& parts);
// Under a new first dimension.
FusedTensor Stack(const std::vector<FusedTensor>& parts);
FusedTensor Transpose(const FusedTensor& tensor, size_t a, size_t b);
// `groups` groups along `dim`, each with the next block of every part in turn. As many groups as
// indices: part by part in single rows.
FusedTensor Interleave(size_t dim, uint64_t groups, const std::vector<FusedTensor>& parts);
// `blocks` blocks along `dim`, each `times` times in a row.
FusedTensor Repeat(const FusedTensor& tensor, size_t dim, uint64_t blocks, uint64_t times);
// `extent` indices of `dim`; those that `tensor` lacks are padding.
FusedTensor Pad(const FusedTensor& tensor, size_t dim, uint64_t extent);
// Query, key and value in `groups` groups along dimension 0: Megatron's groups are the key-value
// heads, an engine's are its tensor-parallel ranks. With more groups than key-value heads, each
// head is repeated.
FusedTensor Qkv(const FusedTensor& q, const FusedTensor& k, const FusedTensor& v, uint64_t kv_heads,
                uint64_t groups);

}  // namespace dws::mesh
