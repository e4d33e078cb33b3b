#include "common/quantise/shared_scales.h"

#include <algorithm>
#include <map>
#include <optional>
#include <utility>

namespace dws::quantise {
namespace {

// A name without the part that tells the tensors of a scale apart.
struct Split {
  std::string before;
  std::string part;
  std::string after;
};

// By the last part of the name that is one of `parts`.
std::optional<Split> SplitAt(const std::string& name, const SharedParts& parts) {
  for (size_t end = name.size();;) {
    const size_t dot = name.rfind('.', end == 0 ? 0 : end - 1);
    const size_t begin = dot == std::string::npos ? 0 : dot + 1;
    const std::string part = name.substr(begin, end - begin);
    if (std::ranges::find(parts, part) != parts.end()) {
      return Split{.before = name.substr(0, begin), .part = part, .after = name.substr(end)};
    }
    if (dot == std::string::npos || dot == 0) return std::nullopt;
    end = dot;
  }
}

// The cuts and cells of the dimensions before the matrix.
std::vector<std::pair<Cuts, CellRange>> StackOf(const Shard& shard) {
  std::vector<std::pair<Cuts, CellRange>> stack;
  for (size_t c = 0; c < shard.tensor.cuts.size(); ++c) {
    if (shard.tensor.cuts[c].dim + 2 < shard.tensor.shape.size()) {
      stack.emplace_back(shard.tensor.cuts[c], shard.cells[c]);
    }
  }
  return stack;
}

Status CheckAlike(const Shard& a, const Shard& b) {
  const std::vector<uint64_t>& one = a.tensor.shape;
  const std::vector<uint64_t>& other = b.tensor.shape;
  const bool same = one.size() == other.size() && one.size() >= 2 &&
                    std::equal(one.begin(), one.end() - 2, other.begin());
  if (!same) {
    return InvalidArgumentError(
        "tensors {} and {} share scales: expected stacks of as many matrices, found other "
        "dimensions",
        a.tensor.name, b.tensor.name);
  }
  if (StackOf(a) != StackOf(b)) {
    return InvalidArgumentError(
        "tensors {} and {} share scales: expected the same cuts of their stacks, found others; "
        "declare the same cuts",
        a.tensor.name, b.tensor.name);
  }
  return OkStatus();
}

}  // namespace

Result<std::vector<std::vector<SharedSet>>> FindShared(std::span<const SharedParts> shares,
                                                       const IsQuantised& quantised,
                                                       const RankLayout& trainer) {
  const std::vector<Shard>& shards = trainer.shards();
  std::vector<std::vector<SharedSet>> result;
  std::vector<size_t> all;
  for (const SharedParts& parts : shares) {
    std::vector<SharedSet>& of_parts = result.emplace_back();
    std::map<std::pair<std::string, std::string>, std::map<std::string, size_t>> sets;
    for (size_t i = 0; i < shards.size(); ++i) {
      if (!quantised(shards[i].tensor)) continue;
      std::optional<Split> split = SplitAt(shards[i].tensor.name, parts);
      if (!split.has_value()) continue;
      sets[{std::move(split->before), std::move(split->after)}].emplace(std::move(split->part), i);
    }
    for (const auto& [around, members] : sets) {
      SharedSet& set = of_parts.emplace_back();
      for (const std::string& part : parts) {
        const auto member = members.find(part);
        if (member == members.end()) {
          return InvalidArgumentError(
              "tensor {}: it shares its scale with {}, which this trainer rank does not have, or "
              "which the view leaves out; one rank has to hold both, or neither is quantised",
              shards[members.begin()->second].tensor.name, around.first + part + around.second);
        }
        DWS_RETURN_IF_ERROR(CheckAlike(shards[members.begin()->second], shards[member->second]));
        set.push_back(member->second);
      }
      all.insert(all.end(), set.begin(), set.end());
    }
  }
  std::ranges::sort(all);
  const auto twice = std::ranges::adjacent_find(all);
  if (twice != all.end()) {
    return InvalidArgumentError("tensor {}: two 'share=' are about it, expected one",
                                shards[*twice].tensor.name);
  }
  return result;
}

}  // namespace dws::quantise
