// The tensors that a recipe makes from a canonical one: names, dtypes, shapes, and cuts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/tensor_spec.h"
#include "common/quantise/recipe.h"

namespace dws::quantise {

// The name of the tensor that takes the place of `canonical`, which ends with what the output
// replaces (CHECK).
std::string NameOf(const OutputKind& output, std::string_view canonical);

// A canonical tensor as a recipe sees it.
struct MatrixShape {
  uint64_t matrices = 0;  // of the stack; 1 for two dimensions
  uint64_t rows = 0;      // of one matrix
  uint64_t columns = 0;

  uint64_t elements() const { return matrices * rows * columns; }
};

// The dimension of the recipe's codes and scales that follows dimension `dim` of a canonical tensor
// of `rank` dimensions, and the other way round: a recipe may transpose matrices.
uint32_t OutputDim(const Recipe& recipe, size_t rank, uint32_t dim);

// Makes a MatrixShape from a valid shape of two or more dimensions. INVALID_ARGUMENT, without the
// tensor's name: fewer dimensions, or rows or columns that the recipe's groups do not divide.
Result<MatrixShape> MatrixShapeOf(const Recipe& recipe, const std::vector<uint64_t>& shape);

// The tensors that the recipe makes of `canonical`, a valid spec, in the order of recipe.outputs().
// Codes and scales are cut where the canonical tensor is, in their own numbers: slice i of each
// depends on slice i of the canonical tensor alone, and on the amax of its matrices where the
// recipe has a tensor scale. Tensor scales are cut along the stack only, like the shape of int4.
//
// INVALID_ARGUMENT, naming the tensor: it is not BF16, its name does not end as the recipe's
// ending(), its shape does not fit, a cut divides a tile (then the message names the boundaries to
// use), or a recipe that transposes would have its cuts in another order.
Result<std::vector<TensorSpec>> DeriveTensors(const Recipe& recipe, const TensorSpec& canonical);

// Returns the cuts that `canonical` needs so that its output of this role is cut at `cuts`. The
// recipe must have this output. INVALID_ARGUMENT, naming the tensor: the output cannot be cut
// there. Does not check that DeriveTensors accepts these cuts.
Result<std::vector<Cuts>> CanonicalCuts(const Recipe& recipe, Role role,
                                        const TensorSpec& canonical, const std::vector<Cuts>& cuts);

}  // namespace dws::quantise
