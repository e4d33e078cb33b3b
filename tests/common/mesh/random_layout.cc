#include "tests/common/mesh/random_layout.h"

#include <fmt/format.h>

#include <algorithm>
#include <numeric>

namespace dws::mesh::naive {
namespace {

using samples::Random;

// One tensor in both forms; the functions below apply a rule to both.
struct Both {
  FusedTensor fused;
  Array array;
};

uint64_t From(Random& random, uint64_t low, uint64_t high) {
  return low + random.Below(high - low + 1);
}

std::vector<FusedTensor> Fused(const std::vector<Both>& parts) {
  std::vector<FusedTensor> fused;
  for (const Both& part : parts) fused.push_back(part.fused);
  return fused;
}
std::vector<Array> Arrays(const std::vector<Both>& parts) {
  std::vector<Array> arrays;
  for (const Both& part : parts) arrays.push_back(part.array);
  return arrays;
}

Both InterleaveBoth(size_t dim, uint64_t groups, const std::vector<Both>& parts) {
  return {mesh::Interleave(dim, groups, Fused(parts)), Interleave(dim, groups, Arrays(parts))};
}
Both StackBoth(const std::vector<Both>& parts) {
  return {mesh::Stack(Fused(parts)), Stack(Arrays(parts))};
}

uint64_t RandomDivisor(Random& random, uint64_t number) {
  std::vector<uint64_t> divisors;
  for (uint64_t d = 1; d <= number; ++d) {
    if (number % d == 0) divisors.push_back(d);
  }
  return divisors[random.Below(divisors.size())];
}

// A canonical tensor, whole or in parts.
std::vector<Both> Parts(Random& random, const Catalogue& catalogue, uint32_t t) {
  const std::vector<uint64_t>& shape = catalogue[t].shape;
  const Array array = Canonical(t, shape);
  std::vector<Both> parts;
  if (!shape.empty() && random.Chance(0.2)) {
    for (uint64_t i = 0; i < shape[0]; ++i)
      parts.push_back({mesh::Row(t, shape, i), Row(array, i)});
  } else if (!shape.empty() && random.Chance(0.2)) {
    const size_t dim = random.Below(shape.size());
    const uint64_t count = RandomDivisor(random, shape[dim]);
    for (uint64_t i = 0; i < count; ++i) {
      parts.push_back({mesh::Every(t, shape, dim, count, i), Every(array, dim, count, i)});
    }
  } else {
    parts.push_back({Whole(t, shape), array});
  }
  return parts;
}

std::vector<Both> Join(Random& random, std::vector<Both> parts) {
  const std::vector<uint64_t>& shape = parts[0].fused.shape;
  const bool alike = std::all_of(parts.begin(), parts.end(),
                                 [&](const Both& part) { return part.fused.shape == shape; });
  if (!alike || random.Chance(0.25)) return parts;
  if (shape.size() < limits::kBoxDimsMax && random.Chance(0.5)) return {StackBoth(parts)};
  if (shape.empty()) return parts;
  const size_t dim = random.Below(shape.size());
  const uint64_t groups = random.Chance(0.5) ? 1 : RandomDivisor(random, shape[dim]);
  return {InterleaveBoth(dim, groups, parts)};
}

Both Bend(Random& random, Both tensor) {
  const size_t dims = tensor.fused.shape.size();
  if (dims >= 2 && random.Chance(0.3)) {
    const size_t a = random.Below(dims);
    const size_t b = random.Below(dims);
    tensor = {mesh::Transpose(tensor.fused, a, b), Transpose(tensor.array, a, b)};
  }
  if (dims >= 1 && random.Chance(0.15)) {
    const size_t dim = random.Below(dims);
    const uint64_t blocks = RandomDivisor(random, tensor.fused.shape[dim]);
    tensor = {mesh::Repeat(tensor.fused, dim, blocks, 2), Repeat(tensor.array, dim, blocks, 2)};
  }
  if (dims >= 1 && random.Chance(0.2)) {
    const size_t dim = random.Below(dims);
    const uint64_t extent = tensor.fused.shape[dim] + From(random, 0, 3);
    tensor = {mesh::Pad(tensor.fused, dim, extent), Pad(tensor.array, dim, extent)};
  }
  return tensor;
}

std::vector<Both> Tensors(Random& random, const Catalogue& catalogue, const Family& family) {
  std::vector<Both> parts;
  if (family.kind == Family::Kind::kQkv && random.Chance(0.7)) {
    for (const uint32_t t : family.tensors) {
      parts.push_back({Whole(t, catalogue[t].shape), Canonical(t, catalogue[t].shape)});
    }
    const uint64_t groups = family.kv_heads * (random.Chance(0.3) ? 2 : 1);
    const FusedTensor fused =
        Qkv(parts[0].fused, parts[1].fused, parts[2].fused, family.kv_heads, groups);
    std::vector<Array> arrays = Arrays(parts);
    if (groups > family.kv_heads) {
      for (size_t i : {1, 2}) arrays[i] = Repeat(arrays[i], 0, family.kv_heads, 2);
    }
    return {{fused, Interleave(0, groups, arrays)}};
  }
  for (const uint32_t t : family.tensors) {
    for (Both& part : Parts(random, catalogue, t)) parts.push_back(std::move(part));
  }
  std::vector<Both> tensors = Join(random, std::move(parts));
  for (Both& tensor : tensors) tensor = Bend(random, std::move(tensor));
  return tensors;
}

Mesh MakeMesh(Random& random, uint32_t rank_count) {
  Mesh mesh;
  uint64_t positions = 1;
  while (mesh.axes.size() < 3) {
    const uint64_t size = From(random, 1, rank_count / positions);
    mesh.axes.push_back(
        {.name = fmt::format("axis{}", mesh.axes.size()), .size = static_cast<uint32_t>(size)});
    positions *= size;
    if (random.Chance(0.3)) break;
  }
  std::vector<uint32_t> ranks(rank_count);
  std::iota(ranks.begin(), ranks.end(), 0);
  for (size_t i = ranks.size(); i > 1; --i) std::swap(ranks[i - 1], ranks[random.Below(i)]);
  ranks.resize(positions);
  mesh.ranks = ranks;
  return mesh;
}

Placement MakePlacement(Random& random, const Axis& axis, size_t dims) {
  const uint64_t kind = random.Below(4);
  if (kind == 1 && random.Chance(0.5)) {
    std::vector<uint32_t> owners{static_cast<uint32_t>(random.Below(axis.size))};
    if (const auto other = static_cast<uint32_t>(random.Below(axis.size)); other != owners[0]) {
      owners.push_back(other);
    }
    return Owner(owners);
  }
  if (dims == 0 || kind == 0) return Replicate();
  const auto dim = static_cast<uint32_t>(random.Below(dims));
  if (kind == 3) return StridedShard(dim, static_cast<uint32_t>(From(random, 1, 4)));
  return mesh::Shard(dim);
}

// Divides the flattened tensor among ranks at random places.
std::vector<FlatRange> MakeFlat(Random& random, uint64_t elements, uint32_t rank_count) {
  std::vector<FlatRange> ranges;
  uint64_t begin = 0;
  for (uint32_t rank = 0; rank < rank_count; ++rank) {
    const uint64_t end =
        rank + 1 == rank_count ? elements : From(random, begin, std::min(elements, begin + 9));
    ranges.push_back({.rank = rank, .begin = begin, .end = end});
    begin = end;
  }
  return ranges;
}

}  // namespace

RandomCatalogue MakeCatalogue(Random& random) {
  RandomCatalogue made;
  const auto add = [&](Family& family, DType dtype, std::vector<uint64_t> shape) {
    family.tensors.push_back(static_cast<uint32_t>(made.catalogue.size()));
    made.catalogue.push_back({.name = fmt::format("tensor{}", made.catalogue.size()),
                              .dtype = dtype,
                              .shape = std::move(shape)});
  };
  const uint64_t families = From(random, 1, 3);
  for (uint64_t f = 0; f < families; ++f) {
    Family family;
    const DType dtype = samples::kAllDTypes[random.Below(std::size(samples::kAllDTypes))];
    if (random.Chance(0.3)) {
      family.kind = Family::Kind::kQkv;
      family.kv_heads = From(random, 1, 3);
      const uint64_t head = From(random, 1, 3);
      const uint64_t kv_rows = family.kv_heads * head;
      const uint64_t columns = From(random, 1, 4);
      add(family, dtype, {2 * kv_rows, columns});
      add(family, dtype, {kv_rows, columns});
      add(family, dtype, {kv_rows, columns});
    } else {
      std::vector<uint64_t> shape(random.Below(4));
      for (uint64_t& extent : shape) extent = From(random, 1, 7);
      const uint64_t count = From(random, 1, 3);
      for (uint64_t i = 0; i < count; ++i) add(family, dtype, shape);
    }
    made.families.push_back(std::move(family));
  }
  return made;
}

RandomLayout MakeLayout(Random& random, const RandomCatalogue& catalogue) {
  RandomLayout made;
  MeshLayout& layout = made.layout;
  layout.rank_count = static_cast<uint32_t>(From(random, 1, 9));
  for (uint64_t m = From(random, 1, 2); m > 0; --m) {
    layout.meshes.push_back(MakeMesh(random, layout.rank_count));
  }
  for (uint32_t rank = 0; rank < layout.rank_count; ++rank) {
    layout.hosts.push_back(static_cast<uint32_t>(random.Below(3)));
    layout.generations.push_back(random.Below(3));
  }
  const auto add = [&](const Family& family) {
    for (Both& tensor : Tensors(random, catalogue.catalogue, family)) {
      MeshTensor added{.name = fmt::format("own{}", layout.tensors.size()),
                       .dtype = catalogue.catalogue[family.tensors[0]].dtype,
                       .content = std::move(tensor.fused),
                       .mesh = static_cast<uint32_t>(random.Below(layout.meshes.size()))};
      for (const Axis& axis : layout.meshes[added.mesh].axes) {
        added.placements.push_back(MakePlacement(random, axis, added.content.shape.size()));
      }
      if (random.Chance(0.2)) {
        added.flat = MakeFlat(random, tensor.array.labels.size(), layout.rank_count);
      }
      layout.tensors.push_back(std::move(added));
      made.arrays.push_back(std::move(tensor.array));
    }
  };
  for (const Family& family : catalogue.families) add(family);
  if (random.Chance(0.3)) add(catalogue.families[0]);  // tied tensors
  return made;
}

}  // namespace dws::mesh::naive
