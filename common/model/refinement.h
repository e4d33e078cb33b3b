// Finer layouts of the same tensors: an engine needs cuts that the trainer did not declare, and the
// sender adds them. Which rank owns which elements stays as it is.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/model/layout.h"

namespace dws {

// Boundaries, by tensor and dimension: each list as TensorSpec::cuts.
using CutWishes = std::map<std::string, std::vector<Cuts>, std::less<>>;

// All boundaries of both.
std::vector<Cuts> UnionOf(const std::vector<Cuts>& a, const std::vector<Cuts>& b);
// The boundaries of `wished` that `known` lacks.
std::vector<Cuts> Without(const std::vector<Cuts>& wished, const std::vector<Cuts>& known);
// Adds boundaries to `wishes`. Returns whether any of them was new.
bool Merge(CutWishes& wishes, const std::string& tensor, const std::vector<Cuts>& cuts);
bool Merge(CutWishes& wishes, const CutWishes& more);

// Returns the boundaries of `wishes` that `layout` lacks, for tensors that it has.
CutWishes Lacking(const RankLayout& layout, const CutWishes& wishes);

// `layout` with all boundaries of `wishes` as well. Tensors that it does not have are passed over.
// INVALID_ARGUMENT: a boundary is not inside its tensor, or RankLayout::Create refuses the finer
// layout, which is past a limit.
Result<RankLayout> Refined(const RankLayout& layout, const CutWishes& wishes);

// Checks that no place of the tensors is lost by `finer`, which is Refined of `layout`: wherever a
// slice can be mapped in a row-major array of larger parts (CoalesceRuns), so can all slices that
// it is cut into. Then the trainer's memory can still be read, and engines can still be attached.
// INVALID_ARGUMENT: one is lost; the message names the tensor and the cuts.
Status CheckKeepsParts(const RankLayout& layout, const RankLayout& finer);

// Returns whether two specs are equal except for their cuts.
bool SameButCuts(const TensorSpec& a, const TensorSpec& b);
// Returns whether two layouts are equal except for the cuts of their tensors: then each has the
// same elements.
bool SameButCuts(const RankLayout& a, const RankLayout& b);

}  // namespace dws
