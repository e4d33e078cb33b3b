#include "common/proto_convert/convert.h"

#include <algorithm>
#include <functional>
#include <utility>
#include <vector>

#include "common/model/limits.h"

namespace dws {

v1::StreamId ToProto(const StreamId& stream) {
  v1::StreamId message;
  message.set_incarnation(stream.incarnation);
  message.set_id_hi(stream.id_hi);
  message.set_id_lo(stream.id_lo);
  return message;
}

v1::Digest ToProto(const Digest& digest) {
  v1::Digest message;
  message.set_lane0(digest.lane0);
  message.set_lane1(digest.lane1);
  return message;
}

v1::Cuts ToProto(const Cuts& cuts) {
  v1::Cuts message;
  message.set_dim(cuts.dim);
  message.mutable_at()->Add(cuts.at.begin(), cuts.at.end());
  return message;
}

v1::TensorSpec ToProto(const TensorSpec& spec) {
  v1::TensorSpec message;
  message.set_name(spec.name);
  message.set_dtype(static_cast<v1::DType>(spec.dtype));
  message.mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
  if (spec.cuts.size() == 1) {
    message.set_cut_dim(spec.cuts[0].dim);
    message.mutable_cuts()->Add(spec.cuts[0].at.begin(), spec.cuts[0].at.end());
    return message;
  }
  for (const Cuts& cuts : spec.cuts) *message.add_grid() = ToProto(cuts);
  return message;
}

v1::RankLayout ToProto(const RankLayout& layout) {
  v1::RankLayout message;
  message.set_view(layout.view());
  for (const Shard& shard : layout.shards()) {
    v1::Shard* added = message.add_shards();
    *added->mutable_tensor() = ToProto(shard.tensor);
    if (shard.cells.size() < 2) {
      const CellRange range = shard.cells.empty() ? CellRange{} : shard.cells[0];
      added->set_first_slice(range.first);
      added->set_slice_count(range.count);
      continue;
    }
    for (const CellRange& range : shard.cells) {
      v1::CellRange* cells = added->add_cells();
      cells->set_first(range.first);
      cells->set_count(range.count);
    }
  }
  return message;
}

v1::FrameEntry ToProto(const FrameEntry& entry) {
  v1::FrameEntry message;
  message.set_first_block(entry.first_block);
  message.set_block_count(entry.block_count);
  message.set_offset(entry.offset);
  message.set_size_bytes(entry.size_bytes);
  message.set_checksum(entry.checksum);
  return message;
}

StreamId AsStands(const v1::StreamId& message) {
  return {.incarnation = message.incarnation(), .id_hi = message.id_hi(), .id_lo = message.id_lo()};
}

Result<StreamId> FromProto(const v1::StreamId& message) {
  if (message.incarnation() == 0 || (message.id_hi() == 0 && message.id_lo() == 0)) {
    return InvalidArgumentError(
        "stream id {}:{:016x}{:016x} is not set: expected an incarnation from 1 and a random id",
        message.incarnation(), message.id_hi(), message.id_lo());
  }
  return AsStands(message);
}

Digest FromProto(const v1::Digest& message) {
  return {.lane0 = message.lane0(), .lane1 = message.lane1()};
}

Result<DType> FromProto(v1::DType message) {
  const auto dtype = DTypeFromNumber(static_cast<uint32_t>(message));
  if (!dtype.has_value()) {
    return InvalidArgumentError("dtype number {} is unknown, expected 1 to 16",
                                static_cast<int>(message));
  }
  return *dtype;
}

namespace {

Result<TensorSpec> SpecFromProto(const v1::TensorSpec& message) {
  auto dtype = FromProto(message.dtype());
  if (!dtype.ok()) return Annotate(dtype.status(), fmt::format("tensor '{}'", message.name()));
  TensorSpec spec{.name = message.name(),
                  .dtype = *dtype,
                  .shape = {message.shape().begin(), message.shape().end()},
                  .cuts = {}};
  if (message.grid().empty()) {
    if (!message.cuts().empty()) {
      spec.cuts = {
          {.dim = message.cut_dim(), .at = {message.cuts().begin(), message.cuts().end()}}};
    } else if (message.cut_dim() != 0) {
      return InvalidArgumentError("tensor '{}' has no cuts but cut_dim {}, expected 0",
                                  message.name(), message.cut_dim());
    }
    return spec;
  }
  if (message.grid_size() < 2 || message.grid_size() > static_cast<int>(limits::kTensorRankMax) ||
      message.cut_dim() != 0 || !message.cuts().empty()) {
    return InvalidArgumentError(
        "tensor '{}' has a grid of {} dimensions and {} cuts beside it, expected 2 to {} "
        "dimensions and nothing beside it",
        message.name(), message.grid_size(), message.cuts_size(), limits::kTensorRankMax);
  }
  for (const v1::Cuts& cuts : message.grid()) {
    spec.cuts.push_back({.dim = cuts.dim(), .at = {cuts.at().begin(), cuts.at().end()}});
  }
  return spec;
}

Result<Shard> ShardFromProto(const v1::Shard& message) {
  DWS_ASSIGN_OR_RETURN(TensorSpec spec, SpecFromProto(message.tensor()));
  if (spec.cuts.size() >= 2) {
    if (message.first_slice() != 0 || message.slice_count() != 0) {
      return InvalidArgumentError(
          "tensor '{}' is cut on {} dimensions and its shard names slices {} + {}, expected cells",
          spec.name, spec.cuts.size(), message.first_slice(), message.slice_count());
    }
    Shard shard{.tensor = std::move(spec), .cells = {}};
    if (message.cells_size() > static_cast<int>(limits::kTensorRankMax)) {
      return InvalidArgumentError("tensor '{}': {} ranges of cells, at most {} are supported",
                                  shard.tensor.name, message.cells_size(), limits::kTensorRankMax);
    }
    for (const v1::CellRange& range : message.cells()) {
      shard.cells.push_back({.first = range.first(), .count = range.count()});
    }
    return shard;
  }
  const CellRange range{.first = message.first_slice(), .count = message.slice_count()};
  if (!message.cells().empty() || (spec.cuts.empty() && range != CellRange{})) {
    return InvalidArgumentError(
        "tensor '{}': slices {} + {} and {} ranges of cells do not fit it: it is {}", spec.name,
        range.first, range.count, message.cells_size(), ToString(spec));
  }
  CellBox cells;
  if (!spec.cuts.empty()) cells.push_back(range);
  return Shard{.tensor = std::move(spec), .cells = std::move(cells)};
}

}  // namespace

Result<RankLayout> FromProto(const v1::RankLayout& message) {
  // The count is bounded before any of them is converted.
  if (static_cast<size_t>(message.shards_size()) > limits::kTensorsMax) {
    return InvalidArgumentError("a layout has {} tensors, at most {} are supported",
                                message.shards_size(), limits::kTensorsMax);
  }
  std::vector<Shard> shards;
  shards.reserve(static_cast<size_t>(message.shards_size()));
  for (const v1::Shard& from : message.shards()) {
    DWS_ASSIGN_OR_RETURN(Shard shard, ShardFromProto(from));
    shards.push_back(std::move(shard));
  }
  return RankLayout::Create(std::move(shards), message.view());
}

FrameEntry FromProto(const v1::FrameEntry& message) {
  return {.first_block = message.first_block(),
          .block_count = message.block_count(),
          .offset = message.offset(),
          .size_bytes = message.size_bytes(),
          .checksum = message.checksum()};
}

Result<CutWishes> FromProto(const google::protobuf::RepeatedPtrField<v1::TensorCuts>& tensors) {
  if (static_cast<size_t>(tensors.size()) > limits::kTensorsMax) {
    return InvalidArgumentError("cuts of {} tensors, at most {} are supported", tensors.size(),
                                limits::kTensorsMax);
  }
  CutWishes wishes;
  for (const v1::TensorCuts& wish : tensors) {
    if (wish.tensor().size() > limits::kTensorNameBytesMax ||
        wish.cuts_size() > static_cast<int>(limits::kTensorRankMax)) {
      return InvalidArgumentError("cuts of {} dimensions of a tensor whose name has {} bytes",
                                  wish.cuts_size(), wish.tensor().size());
    }
    std::vector<Cuts> cuts;
    for (const v1::Cuts& along : wish.cuts()) {
      if (static_cast<size_t>(along.at_size()) > limits::kCutsMax) {
        return InvalidArgumentError("tensor '{}': {} cuts on dim {}, at most {} are supported",
                                    wish.tensor(), along.at_size(), along.dim(), limits::kCutsMax);
      }
      const bool ascend = cuts.empty() || cuts.back().dim < along.dim();
      cuts.push_back({.dim = along.dim(), .at = {along.at().begin(), along.at().end()}});
      if (ascend && std::ranges::is_sorted(cuts.back().at, std::ranges::less_equal())) continue;
      return InvalidArgumentError(
          "cuts of tensor '{}' on dim {}: expected ascending dimensions and boundaries",
          wish.tensor(), along.dim());
    }
    if (!wishes.emplace(wish.tensor(), std::move(cuts)).second) {
      return InvalidArgumentError("cuts of tensor '{}' twice in one message", wish.tensor());
    }
  }
  return wishes;
}

void ToProto(const CutWishes& cuts, google::protobuf::RepeatedPtrField<v1::TensorCuts>& tensors) {
  for (const auto& [tensor, wished] : cuts) {
    v1::TensorCuts* const added = tensors.Add();
    added->set_tensor(tensor);
    for (const Cuts& along : wished) *added->add_cuts() = ToProto(along);
  }
}

}  // namespace dws
