#include "tests/common/mesh/naive.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>

namespace dws::mesh::naive {
namespace {

using Position = std::vector<uint64_t>;

uint64_t Count(const std::vector<uint64_t>& shape) {
  uint64_t count = 1;
  for (const uint64_t extent : shape) count *= extent;
  return count;
}

Position PositionOf(const std::vector<uint64_t>& shape, uint64_t index) {
  Position position(shape.size());
  for (size_t d = shape.size(); d-- > 0;) {
    position[d] = index % shape[d];
    index /= shape[d];
  }
  return position;
}

const Label& At(const Array& array, const Position& position) {
  uint64_t index = 0;
  for (size_t d = 0; d < position.size(); ++d) index = index * array.shape[d] + position[d];
  return array.labels[index];
}

Array Make(std::vector<uint64_t> shape, const std::function<Label(const Position&)>& label) {
  Array array{.shape = std::move(shape), .labels = {}};
  for (uint64_t i = 0; i < Count(array.shape); ++i) {
    array.labels.push_back(label(PositionOf(array.shape, i)));
  }
  return array;
}

std::vector<uint64_t> TorchChunk(const std::vector<uint64_t>& indices, uint64_t chunks,
                                 uint64_t chunk) {
  const uint64_t size = (indices.size() + chunks - 1) / chunks;
  std::vector<uint64_t> taken;
  for (uint64_t i = chunk * size; i < (chunk + 1) * size && i < indices.size(); ++i) {
    taken.push_back(indices[i]);
  }
  return taken;
}

std::byte ByteOf(const Label& label, uint32_t byte) {
  const uint64_t mixed =
      (static_cast<uint64_t>(label.index) * 1'000'003 + label.tensor * 7919 + byte + 1) *
      0x9E3779B97F4A7C15;
  return static_cast<std::byte>(mixed >> 56);
}

struct Memory {
  std::vector<std::byte> bytes;
  std::vector<uint8_t> writes;
};

// Of each rank, its tensors in the order of the layout.
std::vector<std::vector<Memory>> Memories(const MeshLayout& layout,
                                          const std::vector<Array>& arrays, bool filled) {
  std::vector<std::vector<Memory>> ranks(layout.rank_count);
  for (uint32_t rank = 0; rank < layout.rank_count; ++rank) {
    for (size_t t = 0; t < arrays.size(); ++t) {
      Memory memory;
      for (const Label& label : LocalLabels(arrays[t], layout.tensors[t], layout, rank)) {
        const uint32_t size = ElementBytes(layout.tensors[t].dtype);
        for (uint32_t b = 0; b < size; ++b) {
          const bool known = filled && label != kPadding;
          memory.bytes.push_back(known ? ByteOf(label, b) : std::byte{0xEE});
          memory.writes.push_back(0);
        }
      }
      ranks[rank].push_back(std::move(memory));
    }
  }

  return ranks;
}

bool CopyRuns(std::span<const Loop> loops, uint64_t bytes, const Memory& from, uint64_t from_at,
              Memory& to, uint64_t to_at) {
  if (!loops.empty()) {
    for (uint64_t i = 0; i < loops[0].count; ++i) {
      if (!CopyRuns(loops.subspan(1), bytes, from, from_at + i * loops[0].source_stride, to,
                    to_at + i * loops[0].destination_stride)) {
        return false;
      }
    }
    return true;
  }
  if (from_at + bytes > from.bytes.size() || to_at + bytes > to.bytes.size()) return false;
  for (uint64_t i = 0; i < bytes; ++i) {
    to.bytes[to_at + i] = from.bytes[from_at + i];
    ++to.writes[to_at + i];
  }
  return true;
}

}  // namespace

Array Canonical(uint32_t tensor, const std::vector<uint64_t>& shape) {
  int64_t next = 0;
  return Make(shape, [&](const Position&) { return Label{.tensor = tensor, .index = next++}; });
}

Array Every(const Array& array, size_t dim, uint64_t parts, uint64_t first) {
  std::vector<uint64_t> shape = array.shape;
  shape[dim] /= parts;
  return Make(shape, [&](Position at) {
    at[dim] = at[dim] * parts + first;
    return At(array, at);
  });
}

Array Row(const Array& array, uint64_t index) {
  return Make({array.shape.begin() + 1, array.shape.end()}, [&](Position at) {
    at.insert(at.begin(), index);
    return At(array, at);
  });
}

Array Stack(const std::vector<Array>& parts) {
  std::vector<uint64_t> shape = parts[0].shape;
  shape.insert(shape.begin(), parts.size());
  return Make(shape, [&](const Position& at) {
    return At(parts[at[0]], {at.begin() + 1, at.end()});
  });
}

Array Transpose(const Array& array, size_t a, size_t b) {
  std::vector<uint64_t> shape = array.shape;
  std::swap(shape[a], shape[b]);
  return Make(shape, [&](Position at) {
    std::swap(at[a], at[b]);
    return At(array, at);
  });
}

Array Interleave(size_t dim, uint64_t groups, const std::vector<Array>& parts) {
  std::vector<std::pair<size_t, uint64_t>> rows;  // part and its index, in order
  for (uint64_t group = 0; group < groups; ++group) {
    for (size_t p = 0; p < parts.size(); ++p) {
      const uint64_t block = parts[p].shape[dim] / groups;
      for (uint64_t i = 0; i < block; ++i) rows.emplace_back(p, group * block + i);
    }
  }
  std::vector<uint64_t> shape = parts[0].shape;
  shape[dim] = rows.size();
  return Make(shape, [&](Position at) {
    const auto [part, row] = rows[at[dim]];
    at[dim] = row;
    return At(parts[part], at);
  });
}

Array Repeat(const Array& array, size_t dim, uint64_t blocks, uint64_t times) {
  const uint64_t block = array.shape[dim] / blocks;
  std::vector<uint64_t> shape = array.shape;
  shape[dim] *= times;
  return Make(shape, [&](Position at) {
    at[dim] = at[dim] / (block * times) * block + at[dim] % block;
    return At(array, at);
  });
}

Array Pad(const Array& array, size_t dim, uint64_t extent) {
  std::vector<uint64_t> shape = array.shape;
  shape[dim] = extent;
  return Make(shape, [&](const Position& at) {
    return at[dim] < array.shape[dim] ? At(array, at) : kPadding;
  });
}

std::vector<uint64_t> TorchShard(const std::vector<uint64_t>& indices, const Placement& placement,
                                 uint32_t axis_size, uint32_t coordinate) {
  if (placement.kind == Placement::Kind::kShard) return TorchChunk(indices, axis_size, coordinate);
  std::vector<uint64_t> taken;
  for (uint32_t part = 0; part < placement.split; ++part) {
    const std::vector<uint64_t> chunk =
        TorchChunk(TorchChunk(indices, placement.split, part), axis_size, coordinate);
    taken.insert(taken.end(), chunk.begin(), chunk.end());
  }
  return taken;
}

std::vector<Label> LocalLabels(const Array& whole, const MeshTensor& tensor,
                               const MeshLayout& layout, uint32_t rank) {
  for (const FlatRange& range : tensor.flat) {
    if (range.rank != rank) continue;
    return {whole.labels.begin() + static_cast<std::ptrdiff_t>(range.begin),
            whole.labels.begin() + static_cast<std::ptrdiff_t>(range.end)};
  }
  if (!tensor.flat.empty()) return {};
  const Mesh& mesh = layout.meshes[tensor.mesh];
  const auto found = std::find(mesh.ranks.begin(), mesh.ranks.end(), rank);
  if (found == mesh.ranks.end()) return {};
  std::vector<uint64_t> sizes;
  for (const Axis& axis : mesh.axes) sizes.push_back(axis.size);
  const Position coordinates = PositionOf(sizes, static_cast<uint64_t>(found - mesh.ranks.begin()));
  std::vector<std::vector<uint64_t>> held;
  for (const uint64_t extent : whole.shape) {
    held.emplace_back();
    for (uint64_t i = 0; i < extent; ++i) held.back().push_back(i);
  }
  for (size_t a = 0; a < sizes.size(); ++a) {
    const Placement& placement = tensor.placements[a];
    if (placement.kind == Placement::Kind::kReplicate) continue;
    if (placement.kind == Placement::Kind::kOwner) {
      if (std::count(placement.owners.begin(), placement.owners.end(), coordinates[a]) == 0) {
        return {};
      }
      continue;
    }
    held[placement.dim] =
        TorchShard(held[placement.dim], placement, static_cast<uint32_t>(sizes[a]),
                   static_cast<uint32_t>(coordinates[a]));
  }
  std::vector<uint64_t> lengths;
  for (const std::vector<uint64_t>& indices : held) lengths.push_back(indices.size());
  return Make(lengths,
              [&](Position at) {
                for (size_t d = 0; d < at.size(); ++d) at[d] = held[d][at[d]];
                return At(whole, at);
              })
      .labels;
}

std::string Execute(const Plan& plan, const MeshLayout& source_layout,
                    const std::vector<Array>& source, const MeshLayout& destination_layout,
                    const std::vector<Array>& destination) {
  const auto from = Memories(source_layout, source, true);
  auto to = Memories(destination_layout, destination, false);
  const auto wanted = Memories(destination_layout, destination, true);
  for (const Region& region : plan.regions) {
    const Memory& read = region.hop == Hop::kNetwork ? from[region.source][region.source_tensor]
                                                     : to[region.source][region.source_tensor];
    Memory& written = to[region.destination][region.destination_tensor];
    if (!CopyRuns(plan.LoopsOf(region), region.inner_bytes, read, region.source_offset, written,
                  region.destination_offset)) {
      return fmt::format("a region from {} to {} leaves its tensor", region.source,
                         region.destination);
    }
  }
  for (uint32_t rank = 0; rank < destination_layout.rank_count; ++rank) {
    for (size_t t = 0; t < destination.size(); ++t) {
      const std::vector<Label> labels =
          LocalLabels(destination[t], destination_layout.tensors[t], destination_layout, rank);
      const uint32_t size = ElementBytes(destination_layout.tensors[t].dtype);
      for (size_t i = 0; i < to[rank][t].bytes.size(); ++i) {
        const int writes = labels[i / size] == kPadding ? 0 : 1;
        if (to[rank][t].writes[i] == writes && to[rank][t].bytes[i] == wanted[rank][t].bytes[i]) {
          continue;
        }
        return fmt::format("byte {} of '{}' on rank {} was written {} times, expected {}", i,
                           destination_layout.tensors[t].name, rank, to[rank][t].writes[i], writes);
      }
    }
  }
  return "";
}

}  // namespace dws::mesh::naive
