#include "common/quantise/view.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

#include "common/base/check.h"
#include "common/base/printable.h"
#include "common/model/identity_limits.h"
#include "common/quantise/derived_tensors.h"

namespace dws::quantise {
namespace {

constexpr std::string_view kExcept = "except=";
constexpr std::string_view kShare = "share=";

// Sets of tensors that share a scale, and the members of each: each is looked for in every name.
constexpr size_t kSharesMax = 16;

// "a+b+c"; nullopt: fewer than two or too many, one twice, or one that is empty or has a dot.
std::optional<SharedParts> ParseParts(std::string_view text) {
  SharedParts parts;
  while (true) {
    const std::string_view part = text.substr(0, text.find('+'));
    if (part.empty() || parts.size() == kSharesMax || part.find('.') != std::string_view::npos ||
        std::ranges::find(parts, part) != parts.end()) {
      return std::nullopt;
    }
    parts.emplace_back(part);
    if (part.size() == text.size()) break;
    text.remove_prefix(part.size() + 1);
  }
  return parts.size() < 2 ? std::nullopt : std::optional(std::move(parts));
}

// Returns whether `pattern`, in which '*' is any number of characters, matches all of `text`.
bool Matches(std::string_view pattern, std::string_view text) {
  size_t p = 0;
  size_t t = 0;
  // The place behind the last '*', and the end of the text that the '*' has matched.
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
      const uint32_t dim = OutputDim(recipe, shard.tensor.shape.size(), shard.tensor.cuts[c].dim);
      const bool cut = std::any_of(tensor.cuts.begin(), tensor.cuts.end(),
                                   [dim](const Cuts& along) { return along.dim == dim; });
      if (cut) {
        cells.push_back(shard.cells[c]);
      } else {  // it is not cut on this dimension: the rank with the first cells has it
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
         tensor.name.ends_with(recipe.ending()) &&
         std::none_of(except.begin(), except.end(), [&tensor](const std::string& pattern) {
           return Matches(pattern, tensor.name);
         });
}

Result<View> ParseView(std::string_view name) {
  if (name.size() > limits::kViewNameBytesMax) {
    return InvalidArgumentError("a view's name has {} bytes, at most {} are supported", name.size(),
                                limits::kViewNameBytesMax);
  }
  if (const std::string unprintable = UnprintableIn(name); !unprintable.empty()) {
    return InvalidArgumentError("view {}", unprintable);
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
    if (part.starts_with(kExcept) && part.size() > kExcept.size()) {
      view.except.emplace_back(part.substr(kExcept.size()));
      continue;
    }
    std::optional<SharedParts> parts;
    if (part.starts_with(kShare)) parts = ParseParts(part.substr(kShare.size()));
    if (!parts.has_value()) {
      return InvalidArgumentError(
          "view '{}': expected 'except=PATTERN' or 'share=PART+PART' after the recipe, found '{}'",
          name, part);
    }
    if (!view.recipe.has_tensor_scale) {
      return InvalidArgumentError(
          "view '{}': '{}': expected a recipe with one scale a matrix, found {}, whose scales no "
          "tensors share",
          name, part, view.recipe.id);
    }
    if (view.shares.size() == kSharesMax) {
      return InvalidArgumentError("view '{}': more than {} 'share=' are not supported", name,
                                  kSharesMax);
    }
    view.shares.push_back(*std::move(parts));
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
      DWS_ASSIGN_OR_RETURN(const std::vector<Cuts> cuts,
                           CanonicalCuts(view.recipe, output.role, shard.tensor, wish->second));
      Merge(result, name, cuts);
    }
  }
  return result;
}

Result<ViewLayout> ViewLayout::Create(std::string_view name, const RankLayout& trainer) {
  DWS_ASSIGN_OR_RETURN(const View view, ParseView(name));
  const Recipe& recipe = view.recipe;
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
  result.recipe_ = recipe;
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
      const OutputKind* const scales = recipe.Find(Role::kScales);
      if (scales != nullptr) slice.scales = find(NameOf(*scales, tensor.name));
    }
    result.slices_.push_back(std::move(slice));
  }
  DWS_RETURN_IF_ERROR(result.FindConstants(view, trainer));
  DWS_RETURN_IF_ERROR(result.FindMatrices(view, trainer));
  return result;
}

Result<std::map<size_t, size_t>> ViewLayout::FindMatrixTensors(const View& view,
                                                               const RankLayout& trainer) {
  const std::vector<Shard>& shards = trainer.shards();
  const auto quantised = [&view](const TensorSpec& tensor) { return view.Quantises(tensor); };
  DWS_ASSIGN_OR_RETURN(const auto shared, FindShared(view.shares, quantised, trainer));
  std::map<size_t, size_t> set;
  for (size_t i = 0; i < shards.size(); ++i) {
    if (quantised(shards[i].tensor)) set[i] = i;
  }
  for (size_t s = 0; s < shared.size(); ++s) {
    if (shared[s].empty()) {
      unused_shares_.push_back(fmt::format("{}", fmt::join(view.shares[s], "+")));
    }
    for (const SharedSet& members : shared[s]) {
      for (const size_t member : members) set[member] = members.front();
    }
  }
  std::map<size_t, uint32_t> parts;  // so far, by set
  for (const auto& [i, of] : set) {
    const TensorSpec& tensor = shards[i].tensor;
    MatrixTensor made{.shard = i};
    DWS_ASSIGN_OR_RETURN(const RankLayout whole, RankLayout::Create({Shard::Whole(tensor)}));
    made.spec = whole.signature();
    for (const Cuts& cuts : tensor.cuts) {
      if (cuts.dim + 2 >= tensor.shape.size()) made.parts *= cuts.cell_count();
    }
    made.first = parts[of];
    parts[of] += made.parts;
    matrix_tensors_.push_back(std::move(made));
  }
  return set;
}

Status ViewLayout::FindMatrices(const View& view, const RankLayout& trainer) {
  const OutputKind* const kind = view.recipe.Find(Role::kTensorScale);
  if (kind == nullptr) return OkStatus();
  DWS_ASSIGN_OR_RETURN(const auto set, FindMatrixTensors(view, trainer));
  std::map<size_t, MatrixTensor*> tensors;  // by shard
  for (MatrixTensor& tensor : matrix_tensors_) tensors[tensor.shard] = &tensor;
  std::map<std::pair<size_t, uint32_t>, size_t> numbers;  // by set and stack
  for (size_t s = 0; s < slices_.size(); ++s) {
    Slice& slice = slices_[s];
    if (!slice.grid.has_value()) continue;
    const RankLayout::SliceEntry& entry = trainer.slice(slice.from);
    MatrixTensor& tensor = *tensors[entry.shard];
    const uint32_t stack = entry.slice / tensor.parts;
    const auto [found, added] = numbers.try_emplace({set.at(entry.shard), stack}, matrices_.size());
    if (added) matrices_.push_back({.count = slice.grid->shape().matrices});
    Matrices& matrices = matrices_[found->second];
    if (tensor.matrices.try_emplace(stack, found->second).second) matrices.parts += tensor.parts;
    slice.matrices = found->second;
    matrices.slices.push_back(s);
  }
  for (const MatrixTensor& tensor : matrix_tensors_) {
    const std::string name = NameOf(*kind, trainer.shards()[tensor.shard].tensor.name);
    const auto made =
        std::lower_bound(layout_.shards().begin(), layout_.shards().end(), name,
                         [](const Shard& a, const std::string& b) { return a.tensor.name < b; });
    // Perhaps another rank has it.
    if (made == layout_.shards().end() || made->tensor.name != name) continue;
    for (const uint32_t stack : SlicesIn(made->tensor, made->cells)) {
      matrices_[tensor.matrices.at(stack)].scales.push_back(*layout_.Find(name, stack));
    }
  }
  return OkStatus();
}

std::optional<std::string> ViewLayout::DividedTensor(const RankLayout& trainer) const {
  for (const Matrices& matrices : matrices_) {
    if (!matrices.IsDivided()) continue;
    return trainer.tensor(slices_[matrices.slices.front()].from).name;
  }
  return std::nullopt;
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
    // Perhaps another rank has it.
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
