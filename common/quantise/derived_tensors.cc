// Every output is a function of whole tiles, so a cut is carried over by dividing it by the tile or
// by the codes in one element. Cuts that divide a tile would make two slices depend on each other:
// they are refused.
#include "common/quantise/derived_tensors.h"

#include <optional>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/check.h"

namespace dws::quantise {
namespace {

uint64_t Tiles(uint64_t size, uint32_t tile) {
  return tile == Recipe::kWhole ? 1 : CeilDiv(size, tile);
}

// Codes in one element of the tensor of codes.
uint64_t CodesPerElement(const Recipe& recipe) {
  switch (recipe.codes()) {
    case Codes::kE4m3:
      return 1;
    case Codes::kInt4:
      return 8;  // int32
    case Codes::kE2m1:
    case Codes::kE2m1Up:
    case Codes::kE2m1Down:
      return 2;  // uint8
  }
  return 1;
}

std::vector<uint64_t> ShapeOfOutput(const Recipe& recipe, Role role,
                                    const std::vector<uint64_t>& canonical) {
  const size_t last = canonical.size() - 1;
  std::vector<uint64_t> shape = canonical;
  if (recipe.is_transposed()) {
    std::swap(shape[last - 1], shape[last]);
    shape[last] = Tiles(shape[last], recipe.tile_rows);
    // The codes of a tile are a dimension of their own.
    if (role == Role::kCodes) shape.push_back(recipe.tile_rows / CodesPerElement(recipe));
    return shape;
  }
  switch (role) {
    case Role::kCodes:
      shape[last] = CeilDiv(shape[last], CodesPerElement(recipe));
      return shape;
    case Role::kScales:
      shape[last - 1] = Tiles(shape[last - 1], recipe.tile_rows);
      shape[last] = Tiles(shape[last], recipe.tile_columns);
      return shape;
    case Role::kTensorScale:
      shape.resize(last - 1);
      // Checkpoints have it so: ModelOpt writes a scalar, the others one element.
      if (shape.empty() && recipe.rule != Rule::kNvfp4Modelopt) shape.push_back(1);
      return shape;
    case Role::kShape:
      shape.resize(last - 1);
      shape.push_back(2);
      return shape;
  }
  return shape;
}

// Elements of dimension `dim` that stay together: 1 for the dimensions of the stack, kWhole for
// all.
uint32_t Unit(const Recipe& recipe, size_t rank, uint32_t dim) {
  if (dim + 2 < rank) return 1;
  return dim + 2 == rank ? recipe.tile_rows : recipe.tile_columns;
}

Status CheckCuts(const Recipe& recipe, const TensorSpec& tensor) {
  const size_t rank = tensor.shape.size();
  if (recipe.is_transposed() && tensor.cuts.size() > 1 &&
      tensor.cuts[tensor.cuts.size() - 2].dim + 2 == rank) {
    return InvalidArgumentError(
        "tensor {}: recipe {} transposes its matrices, which are cut on both dimensions: expected "
        "cuts of dimension {} or of dimension {}, not of both",
        tensor.name, recipe.id, rank - 2, rank - 1);
  }
  for (const Cuts& cuts : tensor.cuts) {
    const uint32_t unit = Unit(recipe, tensor.shape.size(), cuts.dim);
    if (unit == Recipe::kWhole) {
      return InvalidArgumentError(
          "tensor {}: recipe {} needs the whole of dimension {} in one slice, which is cut at {}: "
          "each row has one scale; cut the rows",
          tensor.name, recipe.id, cuts.dim, cuts.at.front());
    }
    for (const uint64_t at : cuts.at) {
      if (at % unit == 0) continue;
      return InvalidArgumentError(
          "tensor {}: recipe {} needs cuts of dimension {} at multiples of {}, found one at {}; "
          "use {} or {}",
          tensor.name, recipe.id, cuts.dim, unit, at, at / unit * unit,
          std::min((at / unit + 1) * unit, tensor.shape[cuts.dim]));
    }
  }
  return OkStatus();
}

// Returns the factor that turns a boundary of an output's dimension into a boundary of the
// canonical tensor's dimension that it follows; nullopt: the output is not cut on this dimension.
// The output's dimensions are the canonical ones divided, or the first few of them.
std::optional<uint64_t> Multiplier(const Recipe& recipe, Role role, size_t rank, uint32_t dim) {
  if (dim + 2 < rank) return 1;
  if (recipe.is_transposed()) {
    if (dim >= rank) return std::nullopt;  // the codes of a tile
    return dim + 1 == rank ? recipe.tile_rows : 1;
  }
  if (role == Role::kCodes) return dim + 1 == rank ? CodesPerElement(recipe) : 1;
  if (role != Role::kScales || dim >= rank) return std::nullopt;
  const uint32_t unit = Unit(recipe, rank, dim);
  return unit == Recipe::kWhole ? std::nullopt : std::optional<uint64_t>(unit);
}

std::vector<Cuts> CutsOfOutput(const Recipe& recipe, Role role, const TensorSpec& canonical) {
  std::vector<Cuts> result;
  for (const Cuts& cuts : canonical.cuts) {
    const uint32_t dim = OutputDim(recipe, canonical.shape.size(), cuts.dim);
    const auto multiplier = Multiplier(recipe, role, canonical.shape.size(), dim);
    if (!multiplier.has_value()) continue;
    Cuts& mapped = result.emplace_back(cuts);
    mapped.dim = dim;
    for (uint64_t& at : mapped.at) at /= *multiplier;
  }
  return result;
}

}  // namespace

std::string NameOf(const OutputKind& output, std::string_view canonical) {
  DWS_CHECK(canonical.ends_with(output.replaces));
  canonical.remove_suffix(output.replaces.size());
  return std::string(canonical) + std::string(output.name);
}

uint32_t OutputDim(const Recipe& recipe, size_t rank, uint32_t dim) {
  if (!recipe.is_transposed() || dim + 2 < rank || dim >= rank) return dim;
  return static_cast<uint32_t>(2 * rank - 3 - dim);  // the last two change places
}

Result<MatrixShape> MatrixShapeOf(const Recipe& recipe, const std::vector<uint64_t>& shape) {
  if (shape.size() < 2) {
    return InvalidArgumentError(
        "recipe {} quantises matrices: expected two or more dimensions, found {}", recipe.id,
        shape.size());
  }
  MatrixShape result{.matrices = 1, .rows = shape[shape.size() - 2], .columns = shape.back()};
  for (size_t dim = 0; dim + 2 < shape.size(); ++dim) result.matrices *= shape[dim];
  if (recipe.tile_columns > 1 && !recipe.has_partial_tiles &&
      result.columns % recipe.tile_columns != 0) {
    return InvalidArgumentError(
        "recipe {} needs a multiple of {} columns, found {}: leave this tensor as it is "
        "(except= in a view's name), or pad it",
        recipe.id, recipe.tile_columns, result.columns);
  }
  if (recipe.is_transposed() && result.rows % recipe.tile_rows != 0) {
    return InvalidArgumentError(
        "recipe {} needs a multiple of {} rows, found {}: leave this tensor as it is (except= in a "
        "view's name), or pad it",
        recipe.id, recipe.tile_rows, result.rows);
  }
  return result;
}

Result<std::vector<TensorSpec>> DeriveTensors(const Recipe& recipe, const TensorSpec& canonical) {
  if (canonical.dtype != DType::kBF16) {
    return InvalidArgumentError("tensor {}: recipe {} quantises BF16, found {}", canonical.name,
                                recipe.id, ToString(canonical.dtype));
  }
  if (!canonical.name.ends_with(recipe.ending())) {
    return InvalidArgumentError(
        "tensor {}: recipe {} names its tensors after a name that ends in \"{}\"", canonical.name,
        recipe.id, recipe.ending());
  }
  const Result<MatrixShape> shape = MatrixShapeOf(recipe, canonical.shape);
  if (!shape.ok()) return Annotate(shape.status(), fmt::format("tensor {}", canonical.name));
  DWS_RETURN_IF_ERROR(CheckCuts(recipe, canonical));
  std::vector<TensorSpec> result;
  for (const OutputKind& output : recipe.outputs()) {
    result.push_back({.name = NameOf(output, canonical.name),
                      .dtype = output.dtype,
                      .shape = ShapeOfOutput(recipe, output.role, canonical.shape),
                      .cuts = CutsOfOutput(recipe, output.role, canonical)});
    const Status valid = Validate(result.back());
    if (!valid.ok()) {
      return Annotate(valid, fmt::format("recipe {} of tensor {}", recipe.id, canonical.name));
    }
  }
  return result;
}

Result<std::vector<Cuts>> CanonicalCuts(const Recipe& recipe, Role role,
                                        const TensorSpec& canonical,
                                        const std::vector<Cuts>& cuts) {
  const OutputKind* const output = recipe.Find(role);
  DWS_CHECK(output != nullptr);
  std::vector<Cuts> result = cuts;
  for (Cuts& mapped : result) {
    const auto multiplier = Multiplier(recipe, role, canonical.shape.size(), mapped.dim);
    if (!multiplier.has_value()) {
      return InvalidArgumentError(
          "tensor {}: recipe {} has it whole on dimension {}, found a cut there: attach all of it",
          NameOf(*output, canonical.name), recipe.id, mapped.dim);
    }
    const std::vector<uint64_t> shape = ShapeOfOutput(recipe, role, canonical.shape);
    for (uint64_t& at : mapped.at) {
      if (mapped.dim >= shape.size() || at == 0 || at >= shape[mapped.dim]) {
        return InvalidArgumentError(
            "tensor {}: expected cuts inside dimension {}, which has {} indices, found one at {}",
            NameOf(*output, canonical.name), mapped.dim,
            mapped.dim < shape.size() ? shape[mapped.dim] : 0, at);
      }
      at *= *multiplier;
    }
    mapped.dim = OutputDim(recipe, canonical.shape.size(), mapped.dim);
  }
  return result;
}

}  // namespace dws::quantise
