// A recipe: the definition, by name, of how a BF16 tensor becomes the tensors of a quantised
// engine. RECIPES.md defines the bits of each. Two recipes that may differ in one bit have two ids,
// and no id is a default for another.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "common/base/status.h"
#include "common/model/tensor_spec.h"
#include "common/quantise/kernels/rule.h"

namespace dws::quantise {

// The tensors that a recipe makes of one canonical tensor.
enum class Role : uint8_t {
  kCodes,
  kScales,       // one a tile
  kTensorScale,  // one a matrix
  kShape,        // the canonical shape, of int4
};

// One tensor that a recipe makes. Its name is the canonical one with `name` in the place of its
// end.
struct OutputKind {
  Role role = Role::kCodes;
  std::string_view name;  // "weight_scale_inv"
  DType dtype = DType::kU8;
  std::string_view replaces = "weight";  // of the canonical name; the same for all of a recipe
};

// A pure value. A canonical tensor is a matrix of rows and columns (its last two dimensions), or a
// stack of matrices.
struct Recipe {
  static constexpr uint32_t kWhole = 0;  // of tile_rows and tile_columns: all rows, all columns

  std::string_view id;  // "fp8-block128/deepseek"
  Rule rule = Rule::kDeepseek;
  // The tile: the smallest area whose codes and scales depend only on its own elements and (if
  // has_tensor_scale) on the matrix's amax. Tiles do not cross matrices.
  uint32_t tile_rows = 1;
  uint32_t tile_columns = 1;
  // Tiles at the edges may be smaller. If not, the columns must be a multiple of tile_columns.
  bool has_partial_tiles = false;
  // True if codes depend on the largest magnitude (amax) of the whole matrix. Engines fuse tensors
  // (gate with up, q with k and v) into one parameter with one such scale: their amax is the
  // largest of all of them, which the caller finds.
  bool has_tensor_scale = false;

  // True if the outputs are those of the transposed matrix: tiles are runs of its rows.
  bool is_transposed() const { return TilesOf(rule) == Tiles::kColumns; }
  // How the names of the tensors end that it quantises.
  std::string_view ending() const { return outputs().front().replaces; }
  Codes codes() const { return CodesOf(rule); }
  // In the order of Role, each at most once.
  std::span<const OutputKind> outputs() const;
  const OutputKind* Find(Role role) const;  // nullptr: the recipe has no such output

  friend bool operator==(const Recipe& a, const Recipe& b) { return a.id == b.id; }
};

// All recipes, in the order of RECIPES.md.
std::span<const Recipe> AllRecipes();

// INVALID_ARGUMENT: there is no recipe of this id. The message lists those of its scheme, or all.
Result<Recipe> ParseRecipe(std::string_view id);

}  // namespace dws::quantise
