#include "common/proto_convert/convert.h"

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

v1::TensorSpec ToProto(const TensorSpec& spec) {
  v1::TensorSpec message;
  message.set_name(spec.name);
  message.set_dtype(static_cast<v1::DType>(spec.dtype));
  message.mutable_shape()->Add(spec.shape.begin(), spec.shape.end());
  message.set_cut_dim(spec.cut_dim);
  message.mutable_cuts()->Add(spec.cuts.begin(), spec.cuts.end());
  return message;
}

v1::RankLayout ToProto(const RankLayout& layout) {
  v1::RankLayout message;
  for (const Shard& shard : layout.shards()) {
    v1::Shard* added = message.add_shards();
    *added->mutable_tensor() = ToProto(shard.tensor);
    added->set_first_slice(shard.first_slice);
    added->set_slice_count(shard.slice_count);
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

Result<RankLayout> FromProto(const v1::RankLayout& message) {
  // Bounded before any of them is converted.
  if (static_cast<size_t>(message.shards_size()) > limits::kTensorsMax) {
    return InvalidArgumentError("a layout has {} tensors, at most {} are supported",
                                message.shards_size(), limits::kTensorsMax);
  }
  std::vector<Shard> shards;
  shards.reserve(static_cast<size_t>(message.shards_size()));
  for (const v1::Shard& from : message.shards()) {
    const v1::TensorSpec& spec = from.tensor();
    auto dtype = FromProto(spec.dtype());
    if (!dtype.ok()) return Annotate(dtype.status(), fmt::format("tensor '{}'", spec.name()));
    shards.push_back({.tensor = {.name = spec.name(),
                                 .dtype = *dtype,
                                 .shape = {spec.shape().begin(), spec.shape().end()},
                                 .cut_dim = spec.cut_dim(),
                                 .cuts = {spec.cuts().begin(), spec.cuts().end()}},
                      .first_slice = from.first_slice(),
                      .slice_count = from.slice_count()});
  }
  return RankLayout::Create(std::move(shards));
}

FrameEntry FromProto(const v1::FrameEntry& message) {
  return {.first_block = message.first_block(),
          .block_count = message.block_count(),
          .offset = message.offset(),
          .size_bytes = message.size_bytes(),
          .checksum = message.checksum()};
}

}  // namespace dws
