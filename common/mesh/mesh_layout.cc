#include "common/mesh/mesh_layout.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws::mesh {
namespace {

void AppendNumber(std::string& text, uint64_t number) {
  std::byte bytes[8];
  StoreLe(bytes, number);
  text.append(AsText(bytes));
}

void AppendText(std::string& text, std::string_view part) {
  AppendNumber(text, part.size());
  text.append(part);
}

template <typename Numbers>
void AppendNumbers(std::string& text, const Numbers& numbers) {
  AppendNumber(text, numbers.size());
  for (const auto number : numbers) AppendNumber(text, number);
}

void AppendTensor(std::string& text, const MeshTensor& tensor) {
  AppendText(text, tensor.name);
  AppendNumber(text, static_cast<uint64_t>(tensor.dtype));
  AppendNumbers(text, tensor.content.shape);
  AppendNumber(text, tensor.content.padding);
  AppendNumber(text, tensor.content.pieces.size());
  for (const Piece& piece : tensor.content.pieces) {
    AppendNumbers(text, piece.own.box.lo);
    AppendNumbers(text, piece.own.box.extent);
    AppendNumbers(text, std::array{piece.own.count, piece.own.step, uint64_t{piece.own.dim},
                                   uint64_t{piece.canonical}, piece.step});
    AppendNumbers(text, piece.lo);
    AppendNumbers(text, piece.axis);
  }
  AppendNumber(text, tensor.mesh);
  AppendNumber(text, tensor.placements.size());
  for (const Placement& placement : tensor.placements) {
    AppendNumbers(
        text, std::array{static_cast<uint32_t>(placement.kind), placement.dim, placement.split});
    AppendNumbers(text, placement.owners);
  }
  AppendNumber(text, tensor.flat.size());
  for (const FlatRange& range : tensor.flat) {
    AppendNumbers(text, std::array{uint64_t{range.rank}, range.begin, range.end});
  }
}

Status CheckShape(const std::vector<uint64_t>& shape, DType dtype) {
  if (shape.size() > limits::kBoxDimsMax) {
    return InvalidArgumentError("has {} dimensions, at most {} are supported", shape.size(),
                                limits::kBoxDimsMax);
  }
  uint64_t bytes = ElementBytes(dtype);
  for (const uint64_t extent : shape) {
    if (extent != 0 && bytes > limits::kTensorBytesMax / extent) {
      return InvalidArgumentError("is larger than {} bytes", limits::kTensorBytesMax);
    }
    bytes *= extent;
  }
  return OkStatus();
}

// Whether `count` blocks of `extent` from `lo`, `step` apart, end by `size`; nothing overflows.
bool Fits(uint64_t lo, uint64_t extent, uint64_t count, uint64_t step, uint64_t size) {
  if (extent > size || lo > size - extent) return false;
  return count <= 1 || (step >= extent && step > 0 && count - 1 <= (size - extent - lo) / step);
}

Status CheckPiece(const Catalogue& catalogue, const MeshTensor& tensor, const Piece& piece) {
  if (piece.canonical >= catalogue.size()) {
    return InvalidArgumentError("names canonical tensor {}, there are {}", piece.canonical,
                                catalogue.size());
  }
  const CanonicalTensor& canonical = catalogue[piece.canonical];
  if (canonical.dtype != tensor.dtype) {
    return InvalidArgumentError("is {}, '{}' is {}: expected one dtype", ToString(tensor.dtype),
                                canonical.name, ToString(canonical.dtype));
  }
  const Stripes& own = piece.own;
  if (own.count > limits::kPieceBlocksMax) {
    return ResourceExhaustedError("has a piece of {} blocks, at most {} are supported", own.count,
                                  limits::kPieceBlocksMax);
  }
  const Box whole = WholeBox(tensor.content.shape);
  const Box target = WholeBox(canonical.shape);
  bool fits = own.count > 0 && own.dim < limits::kBoxDimsMax;
  Index uses{};
  for (size_t d = 0; d < limits::kBoxDimsMax && fits; ++d) {
    fits = Fits(own.box.lo[d], own.box.extent[d], d == own.dim ? own.count : 1, own.step,
                whole.extent[d]);
    const size_t own_dim = piece.axis[d];
    if (own_dim == kNoAxis) {
      fits = fits && Fits(piece.lo[d], 1, 1, 0, target.extent[d]);
    } else if (own_dim >= limits::kBoxDimsMax || ++uses[own_dim] > 1) {
      fits = false;
    } else {
      fits = fits && Fits(piece.lo[d], own.box.extent[own_dim], own_dim == own.dim ? own.count : 1,
                          piece.step, target.extent[d]);
    }
  }
  // A dimension that no canonical one runs along has one index, else elements would repeat.
  for (size_t d = 0; d < limits::kBoxDimsMax && fits; ++d) {
    fits = uses[d] == 1 || (own.box.extent[d] == 1 && (own.count == 1 || own.dim != d));
  }
  if (fits) return OkStatus();
  return InvalidArgumentError("has a piece at {} of shape {} which does not fit '{}' of shape {}",
                              ToString(own.box, tensor.content.shape.size()),
                              ToString(whole, tensor.content.shape.size()), canonical.name,
                              ToString(target, canonical.shape.size()));
}

// The pieces cover the tensor once, except for its padding.
Status CheckPieces(const MeshTensor& tensor) {
  const FusedTensor& content = tensor.content;
  std::vector<Stripes> parts;
  uint64_t covered = 0;
  for (const Piece& piece : content.pieces) {
    parts.push_back(piece.own);
    covered += Volume(piece.own);
  }
  if (const std::optional<Box> twice = FindOverlap(parts)) {
    return InvalidArgumentError("has two pieces at {}, expected one",
                                ToString(*twice, content.shape.size()));
  }
  const uint64_t elements = Volume(WholeBox(content.shape));
  if (covered + content.padding == elements) return OkStatus();
  const std::optional<Box> hole = FindHole(OneBlock(WholeBox(content.shape)), parts);
  return InvalidArgumentError(
      "has {} elements, its pieces {} and its padding {}{}", elements, covered, content.padding,
      hole.has_value() ? "; the first hole is " + ToString(*hole, content.shape.size()) : "");
}

Status CheckFlat(const MeshTensor& tensor, uint32_t rank_count) {
  std::vector<bool> seen(rank_count, false);
  for (const FlatRange& range : tensor.flat) {
    if (range.rank >= rank_count || seen[range.rank]) {
      return InvalidArgumentError(
          "has flat range {} to {} on rank {}, expected one on each of {} ranks at most",
          range.begin, range.end, range.rank, rank_count);
    }
    seen[range.rank] = true;
  }
  return OkStatus();
}

Status CheckTensor(const Catalogue& catalogue, const MeshLayout& layout, const MeshTensor& tensor) {
  DWS_RETURN_IF_ERROR(CheckShape(tensor.content.shape, tensor.dtype));
  if (tensor.content.pieces.size() > limits::kPiecesMax) {
    return ResourceExhaustedError("has {} pieces, at most {} are supported",
                                  tensor.content.pieces.size(), limits::kPiecesMax);
  }
  if (tensor.flat.empty() && tensor.mesh >= layout.meshes.size()) {
    return InvalidArgumentError("names mesh {}, there are {}", tensor.mesh, layout.meshes.size());
  }
  for (const Piece& piece : tensor.content.pieces) {
    DWS_RETURN_IF_ERROR(CheckPiece(catalogue, tensor, piece));
  }
  DWS_RETURN_IF_ERROR(CheckPieces(tensor));
  return CheckFlat(tensor, layout.rank_count);
}

bool AreDisjoint(const std::vector<LocalBox>& boxes) {
  std::vector<Stripes> parts;
  for (const LocalBox& local : boxes) parts.push_back(OneBlock(local.box));
  return !FindOverlap(parts).has_value();
}

Status InTensor(const Status& status, std::string_view name) {
  return Annotate(status, fmt::format("tensor '{}'", name));
}

}  // namespace

Status Validate(const Catalogue& catalogue) {
  if (catalogue.size() > limits::kMeshTensorsMax) {
    return ResourceExhaustedError("{} canonical tensors, at most {} are supported",
                                  catalogue.size(), limits::kMeshTensorsMax);
  }
  for (const CanonicalTensor& tensor : catalogue) {
    DWS_RETURN_IF_ERROR(InTensor(CheckShape(tensor.shape, tensor.dtype), tensor.name));
  }
  return OkStatus();
}

Status Validate(const Catalogue& catalogue, const MeshLayout& layout) {
  if (layout.rank_count == 0 || layout.rank_count > limits::kWorldSizeMax) {
    return InvalidArgumentError("a layout has {} ranks, expected 1 to {}", layout.rank_count,
                                limits::kWorldSizeMax);
  }
  if (layout.tensors.size() > limits::kMeshTensorsMax) {
    return ResourceExhaustedError("a layout has {} tensors, at most {} are supported",
                                  layout.tensors.size(), limits::kMeshTensorsMax);
  }
  for (const size_t count : {layout.hosts.size(), layout.generations.size()}) {
    if (count == 0 || count == layout.rank_count) continue;
    return InvalidArgumentError("a layout names hosts or generations of {} ranks, it has {}", count,
                                layout.rank_count);
  }
  for (const Mesh& mesh : layout.meshes) DWS_RETURN_IF_ERROR(Validate(mesh, layout.rank_count));
  for (const MeshTensor& tensor : layout.tensors) {
    DWS_RETURN_IF_ERROR(InTensor(CheckTensor(catalogue, layout, tensor), tensor.name));
  }
  return OkStatus();
}

Digest DigestOf(const Catalogue& catalogue, const MeshLayout& layout) {
  std::string text;
  AppendNumber(text, catalogue.size());
  for (const CanonicalTensor& tensor : catalogue) {
    AppendText(text, tensor.name);
    AppendNumber(text, static_cast<uint64_t>(tensor.dtype));
    AppendNumbers(text, tensor.shape);
  }
  AppendNumber(text, layout.rank_count);
  AppendNumbers(text, layout.hosts);
  AppendNumber(text, layout.meshes.size());
  for (const Mesh& mesh : layout.meshes) {
    AppendNumber(text, mesh.axes.size());
    for (const Axis& axis : mesh.axes) {
      AppendText(text, axis.name);
      AppendNumber(text, axis.size);
    }
    AppendNumbers(text, mesh.ranks);
  }
  AppendNumber(text, layout.tensors.size());
  for (const MeshTensor& tensor : layout.tensors) AppendTensor(text, tensor);
  return DigestBytes(AsBytes(text), 0);
}

Result<PartIndex> PartIndex::Create(const MeshLayout& layout, size_t canonical_count) {
  PartIndex index(layout);
  index.references_.resize(canonical_count);
  size_t held = 0;  // boxes and ranks
  for (uint32_t t = 0; t < layout.tensors.size(); ++t) {
    const MeshTensor& tensor = layout.tensors[t];
    const auto [place, is_new] = index.holdings_.try_emplace(
        Key(tensor.mesh, tensor.content.shape, tensor.placements, tensor.flat));
    if (is_new) {
      Result<std::vector<Holding>> holdings =
          tensor.flat.empty()
              ? HoldingsOf(layout.meshes[tensor.mesh], tensor.placements, tensor.content.shape)
              : HoldingsOf(tensor.flat, tensor.content.shape);
      if (!holdings.ok()) return InTensor(holdings.status(), tensor.name);
      for (const Holding& holding : *holdings) {
        DWS_CHECK(AreDisjoint(holding.boxes));
        held += holding.boxes.size() + holding.ranks.size();
      }
      if (held > limits::kLayoutHoldingsMax) {
        return ResourceExhaustedError(
            "tensor '{}': the tensors up to it are cut into {} boxes and ranks that hold them, at "
            "most {} are supported",
            tensor.name, held, limits::kLayoutHoldingsMax);
      }
      place->second = *std::move(holdings);
    }
    index.holdings_of_.push_back(&place->second);
    for (uint32_t p = 0; p < tensor.content.pieces.size(); ++p) {
      index.references_[tensor.content.pieces[p].canonical].push_back({.tensor = t, .piece = p});
    }
  }
  return index;
}

Result<std::vector<Part>> PartIndex::PartsOf(uint32_t canonical) const {
  std::vector<Part> parts;
  std::vector<Fragment> fragments;
  for (const Reference& reference : references_[canonical]) {
    const Piece& piece = layout_->tensors[reference.tensor].content.pieces[reference.piece];
    const Box bounds = Bounds(piece.own);
    for (const Holding& holding : *holdings_of_[reference.tensor]) {
      fragments.clear();
      for (const LocalBox& local : holding.boxes) {
        if (!Intersect(bounds, local.box).has_value()) continue;
        AppendFragments(piece, local, fragments);
        if (parts.size() + fragments.size() > limits::kPartsMax) {
          return ResourceExhaustedError("tensor '{}': its pieces are cut into more than {} parts",
                                        layout_->tensors[reference.tensor].name, limits::kPartsMax);
        }
      }
      for (const Fragment& fragment : fragments) {
        parts.push_back({.fragment = fragment, .holding = &holding, .tensor = reference.tensor});
      }
    }
  }
  return parts;
}

size_t PartIndex::ReplicasOf(uint32_t canonical) const {
  size_t replicas = 0;
  for (const Reference& reference : references_[canonical]) {
    for (const Holding& holding : *holdings_of_[reference.tensor]) {
      replicas = std::max(replicas, holding.ranks.size());
    }
  }
  return replicas;
}

}  // namespace dws::mesh
