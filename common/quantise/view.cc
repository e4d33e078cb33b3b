#include "common/quantise/view.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/model/identity_limits.h"
#include "common/quantise/derived_tensors.h"

namespace dws::quantise {
namespace {

constexpr std::string_view kExcept = "except=";

// Whether `pattern`, in which '*' is any number of characters, is all of `text`.
bool Matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  // Behind the last '*', and what it has taken up to.
  std::optional<std::pair<size_t, size_t>> star;
  while (t < text.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = {++p, t};
    } else if (p < pattern.size() && pattern[p] == text[t]) {
      ++p;
      ++t;
    } else if (star.has_value()) {
      p = star->first;
      t = ++star->second;
    } else {
      return false;
    }
  }
  return std::all_of(pattern.begin() + static_cast<ptrdiff_t>(p), pattern.end(),
                     [](char c) { return c == '*'; });
}

// The shards that take the place of `shard`, in the order of the recipe's outputs.
Result<std::vector<Shard>> DeriveShards(const Recipe& recipe, const Shard& shard) {
  DWS_ASSIGN_OR_RETURN(std::vector<TensorSpec> tensors, DeriveTensors(recipe, shard.tensor));
  std::vector<Shard> shards;
  for (TensorSpec& tensor : tensors) {
    CellBox cells;
    bool ours = true;
    for (size_t c = 0; c < shard.tensor.cuts.size(); ++c) {
      const uint32_t dim = shard.tensor.cuts[c].dim;
      const bool cut = std::any_of(tensor.cuts.begin(), tensor.cuts.end(),
                                   [dim](const Cuts& along) { return along.dim == dim; });
      if (cut) {
        cells.push_back(shard.cells[c]);
      } else {  // it is not cut so: the rank with the first cells has it
        ours = ours && shard.cells[c].first == 0;
      }
    }
    if (ours) shards.push_back({.tensor = std::move(tensor), .cells = std::move(cells)});
  }
  return shards;
}

}  // namespace

bool View::Quantises(const TensorSpec& tensor) const {
  return tensor.dtype == DType::kBF16 && tensor.shape.size() >= 2 && tensor.ElementCount() > 0 &&
         tensor.name.ends_with(kWeight) &&
         std::none_of(except.begin(), except.end(), [&tensor](const std::string& pattern) {
           return Matches(pattern, tensor.name);
         });
}

Result<View> ParseView(std::string_view name) {
  if (name.size() > limits::kViewNameBytesMax) {
    return InvalidArgumentError("a view's name has {} bytes, at most {} are supported", name.size(),
                                limits::kViewNameBytesMax);
  }
  View view;
  std::string_view rest = name;
  const auto take = [&rest] {
    const std::string_view part = rest.substr(0, rest.find(','));
    rest.remove_prefix(std::min(rest.size(), part.size() + 1));
    return part;
  };
  DWS_ASSIGN_OR_RETURN(view.recipe, ParseRecipe(take()));
  while (!rest.empty()) {
    const std::string_view part = take();
    if (!part.starts_with(kExcept) || part.size() == kExcept.size()) {
      return InvalidArgumentError(
          "view '{}': expected 'except=PATTERN' after the recipe, found '{}'", name, part);
    }
    view.except.emplace_back(part.substr(kExcept.size()));
  }
  return view;
}

Result<CutWishes> TrainerCuts(const View& view, const RankLayout& trainer,
                              const CutWishes& wishes) {
  CutWishes result;
  for (const Shard& shard : trainer.shards()) {
    const std::string& name = shard.tensor.name;
    if (!view.Quantises(shard.tensor)) {
      const auto wish = wishes.find(name);
      if (wish != wishes.end()) Merge(result, name, wish->second);
      continue;
    }
    for (const OutputKind& output : view.recipe.outputs()) {
      const auto wish = wishes.find(NameOf(output, name));
      if (wish == wishes.end()) continue;
      DWS_ASSIGN_OR_RETURN(
          const std::vector<Cuts> cuts,
          CanonicalCuts(view.recipe, output.role, shard.tensor, wish->second));
      Merge(result, name, cuts);
    }
  }
  return result;
}

Result<ViewLayout> ViewLayout::Create(std::string_view name, const RankLayout& trainer) {
  DWS_ASSIGN_OR_RETURN(const View view, ParseView(name));
  const Recipe& recipe = view.recipe;
  if (recipe.has_tensor_scale) {
    return UnimplementedError(
        "recipe {} has a scale that depends on a whole matrix: views of it are not supported, take "
        "one with scales of blocks, rows or groups",
        recipe.id);
  }
  std::vector<Shard> shards;
  for (const Shard& shard : trainer.shards()) {
    std::vector<Shard> derived = {shard};
    if (view.Quantises(shard.tensor)) {
      DWS_ASSIGN_OR_RETURN(derived, DeriveShards(recipe, shard));
    }
    for (Shard& made : derived) shards.push_back(std::move(made));
  }
  std::sort(shards.begin(), shards.end(),
            [](const Shard& a, const Shard& b) { return a.tensor.name < b.tensor.name; });
  ViewLayout result;
  DWS_ASSIGN_OR_RETURN(result.layout_, RankLayout::Create(std::move(shards), std::string(name)));
  for (uint32_t s = 0; s < trainer.slice_count(); ++s) {
    const RankLayout::SliceEntry& entry = trainer.slice(RankSlice(s));
    const TensorSpec& tensor = trainer.shards()[entry.shard].tensor;
    if (entry.blocks == 0) continue;
    const auto find = [&](const std::string& made) {
      const auto slice = result.layout_.Find(made, entry.slice);
      DWS_CHECK(slice.has_value());
      return *slice;
    };
    Slice slice{.from = RankSlice(s)};
    if (!view.Quantises(tensor)) {
      slice.codes = find(tensor.name);
    } else {
      DWS_ASSIGN_OR_RETURN(slice.grid,
                           TileGrid::Create(recipe, ShapeOf(tensor.Slice(entry.slice))));
      slice.codes = find(NameOf(*recipe.Find(Role::kCodes), tensor.name));
      slice.scales = find(NameOf(*recipe.Find(Role::kScales), tensor.name));
    }
    result.slices_.push_back(std::move(slice));
  }
  DWS_RETURN_IF_ERROR(result.FindConstants(view, trainer));
  return result;
}

Status ViewLayout::FindConstants(const View& view, const RankLayout& trainer) {
  const OutputKind* const kind = view.recipe.Find(Role::kShape);
  if (kind == nullptr) return OkStatus();
  for (const Shard& shard : trainer.shards()) {
    if (!view.Quantises(shard.tensor)) continue;
    const std::string name = NameOf(*kind, shard.tensor.name);
    const auto made =
        std::lower_bound(layout_.shards().begin(), layout_.shards().end(), name,
                         [](const Shard& a, const std::string& b) { return a.tensor.name < b; });
    // Another rank may have it.
    if (made == layout_.shards().end() || made->tensor.name != name) continue;
    for (const uint32_t number : SlicesIn(made->tensor, made->cells)) {
      const std::vector<DimRange> part = made->tensor.Slice(number);
      std::vector<uint64_t> shape = shard.tensor.shape;
      for (size_t dim = 0; dim + 2 < shape.size(); ++dim) shape[dim] = part[dim].size();
      DWS_ASSIGN_OR_RETURN(const MatrixShape matrices, MatrixShapeOf(view.recipe, shape));
      constants_.push_back({.slice = *layout_.Find(name, number), .shape = matrices});
    }
  }
  return OkStatus();
}

}  // namespace dws::quantise
