#include "common/delta/objects/manifest.h"

#include <google/protobuf/descriptor.h>
#include <google/protobuf/io/coded_stream.h>
#include <google/protobuf/wire_format.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/delta/objects/frame.h"
#include "common/model/limits.h"
#include "proto/delta.pb.h"

namespace dws {
namespace {

namespace pb = google::protobuf;

// Upper bounds of the bytes of one SliceDelta without frames, of one FrameEntry, and of the rest of
// the manifest: tags, lengths and numbers at their longest.
constexpr uint64_t kSliceBytesMax = 96;
constexpr uint64_t kFrameEntryBytesMax = 56;
constexpr uint64_t kIdentityBytesMax = 160;

void Store(const Digest& digest, v1::Digest& message) {
  message.set_lane0(digest.lane0);
  message.set_lane1(digest.lane1);
}

Digest Load(const v1::Digest& message) {
  return {.lane0 = message.lane0(), .lane1 = message.lane1()};
}

void Store(const SliceDelta& slice, v1::SliceDelta& message) {
  message.set_rank_slice(slice.slice.value());
  message.set_nnz(slice.nnz);
  Store(slice.before, *message.mutable_before());
  Store(slice.after, *message.mutable_after());
  for (const FrameEntry& entry : slice.frames) {
    v1::FrameEntry& frame = *message.add_frames();
    frame.set_first_block(entry.first_block);
    frame.set_block_count(entry.block_count);
    frame.set_offset(entry.offset);
    frame.set_size_bytes(entry.size_bytes);
    frame.set_checksum(entry.checksum);
  }
  if (slice.classes.has_value()) {
    const ClassTableBytes bytes = PackClassTable(*slice.classes);
    message.set_class_table(bytes.data(), ClassTableSize(*slice.classes));
  }
}

Result<SliceDelta> Load(const v1::SliceDelta& message) {
  SliceDelta slice{.slice = RankSlice(message.rank_slice()),
                   .nnz = message.nnz(),
                   .before = Load(message.before()),
                   .after = Load(message.after())};
  slice.frames.reserve(static_cast<size_t>(message.frames_size()));
  for (const v1::FrameEntry& frame : message.frames()) {
    slice.frames.push_back({.first_block = frame.first_block(),
                            .block_count = frame.block_count(),
                            .offset = frame.offset(),
                            .size_bytes = frame.size_bytes(),
                            .checksum = frame.checksum()});
  }
  if (!message.class_table().empty()) {
    DWS_ASSIGN_OR_RETURN(slice.classes, UnpackClassTable(AsBytes(message.class_table())));
  }
  return slice;
}

// Checks one frame. Moves `next_block` and `next_offset` (in the frames section) past it.
Status CheckFrame(const FrameEntry& entry, uint32_t slice_blocks, uint32_t& next_block,
                  uint64_t& next_offset) {
  if (entry.block_count == 0 || entry.block_count > kFrameBlocksMax ||
      entry.first_block < next_block || entry.first_block > slice_blocks ||
      entry.block_count > slice_blocks - entry.first_block) {
    return DataLossError("a frame has blocks {} + {}, expected them between {} and {}",
                         entry.first_block, entry.block_count, next_block, slice_blocks);
  }
  if (entry.size_bytes < kFrameHeaderBytes || entry.size_bytes > limits::kFrameBytesMax) {
    return DataLossError("a frame has {} bytes, {} to {} are possible", entry.size_bytes,
                         kFrameHeaderBytes, limits::kFrameBytesMax);
  }
  if (entry.offset != next_offset) {
    return DataLossError("a frame begins at byte {}, expected {}", entry.offset, next_offset);
  }
  next_block = entry.first_block + entry.block_count;
  next_offset += entry.size_bytes;
  return OkStatus();
}

Status CheckSlice(const SliceDelta& slice, const RankLayout::SliceEntry& layout,
                  uint64_t& next_offset) {
  if (slice.nnz > layout.elements || slice.frames.empty()) {
    return DataLossError("{} changes in {} elements, {} frames", slice.nnz, layout.elements,
                         slice.frames.size());
  }
  uint32_t next_block = 0;
  for (const FrameEntry& entry : slice.frames) {
    DWS_RETURN_IF_ERROR(CheckFrame(entry, layout.blocks, next_block, next_offset));
  }
  return OkStatus();
}

// Used for every slice when the layout is not known: any size is possible.
constexpr RankLayout::SliceEntry kAnySlice = {.elements = limits::kTensorBytesMax,
                                              .blocks = UINT32_MAX};

// Checks everything but the layout's signature. `layout` null: slices may have any size.
Status CheckContents(const DeltaManifest& manifest, const RankLayout* layout,
                     uint64_t frames_bytes) {
  if (manifest.version.value() == 0 || manifest.base_version >= manifest.version) {
    return DataLossError("manifest: version {} over base {}, expected a version above its base",
                         manifest.version.value(), manifest.base_version.value());
  }
  const uint32_t slice_count =
      layout != nullptr ? layout->slice_count() : static_cast<uint32_t>(limits::kSlicesMax);
  uint64_t next_offset = 0;
  uint32_t next_slice = 0;
  for (const SliceDelta& slice : manifest.slices) {
    if (slice.slice.value() < next_slice || slice.slice.value() >= slice_count) {
      return DataLossError("manifest: slice {}, expected one from {} to below {}",
                           slice.slice.value(), next_slice, slice_count);
    }
    next_slice = slice.slice.value() + 1;
    const RankLayout::SliceEntry& entry =
        layout != nullptr ? layout->slice(slice.slice) : kAnySlice;
    if (Status status = CheckSlice(slice, entry, next_offset); !status.ok()) {
      const std::string of =
          layout != nullptr ? fmt::format(" of '{}'", layout->tensor(slice.slice).name) : "";
      return Annotate(status, fmt::format("manifest: slice {}{}", slice.slice.value(), of));
    }
  }
  if (next_offset != frames_bytes) {
    return DataLossError("manifest: its frames have {} bytes, the object has {}", next_offset,
                         frames_bytes);
  }
  return OkStatus();
}

// Checks a message's bytes before protobuf parses them: protobuf would keep unknown fields, and an
// empty SliceDelta or FrameEntry has two bytes here but takes about a hundred once parsed.
class ShapeChecker {
 public:
  ShapeChecker(ByteSpan bytes, const RankLayout* layout)
      : input_(reinterpret_cast<const uint8_t*>(bytes.data()), static_cast<int>(bytes.size())) {
    constexpr uint64_t kFrameBytesMin = 6;  // of a FrameEntry that is possible; 8 of a SliceDelta
    slices_max_ = std::min<uint64_t>(layout != nullptr ? layout->slice_count() : limits::kSlicesMax,
                                     bytes.size() / (kFrameBytesMin + 2));
    frames_max_ = std::min<uint64_t>(layout != nullptr ? layout->block_count() : UINT64_MAX,
                                     bytes.size() / kFrameBytesMin);
  }

  // Reads a message of `type`, and the messages inside it, to the current end of the input.
  Status Check(const pb::Descriptor& type) {
    slices_ += &type == v1::SliceDelta::descriptor() ? 1 : 0;
    frames_ += &type == v1::FrameEntry::descriptor() ? 1 : 0;
    if (slices_ > slices_max_ || frames_ > frames_max_) {
      return DataLossError("manifest: more than {} slices or {} frames", slices_max_, frames_max_);
    }
    while (const uint32_t tag = input_.ReadTag()) {
      const pb::FieldDescriptor* const field = type.FindFieldByNumber(static_cast<int>(tag >> 3));
      if (field == nullptr || pb::internal::WireFormat::MakeTag(field) != tag) {
        return DataLossError("manifest: a {} has no field {} of wire type {}", type.name(),
                             tag >> 3, tag & 7);
      }
      DWS_RETURN_IF_ERROR(CheckField(*field, tag));
    }
    return OkStatus();
  }

 private:
  Status CheckField(const pb::FieldDescriptor& field, uint32_t tag) {
    bool whole = true;
    if (field.message_type() == nullptr) {
      whole = pb::internal::WireFormatLite::SkipField(&input_, tag);
    } else {
      const auto outer = input_.ReadLengthAndPushLimit();
      DWS_RETURN_IF_ERROR(Check(*field.message_type()));
      whole = input_.CheckEntireMessageConsumedAndPopLimit(outer);
    }
    if (whole) return OkStatus();
    return DataLossError("manifest: field '{}' is cut off", field.name());
  }

  pb::io::CodedInputStream input_;
  uint64_t slices_max_ = 0;
  uint64_t frames_max_ = 0;
  uint64_t slices_ = 0;
  uint64_t frames_ = 0;
};

}  // namespace

std::vector<std::byte> SerializeManifest(const DeltaManifest& manifest) {
  v1::DeltaManifest message;
  message.mutable_stream()->set_incarnation(manifest.stream.incarnation);
  message.mutable_stream()->set_id_hi(manifest.stream.id_hi);
  message.mutable_stream()->set_id_lo(manifest.stream.id_lo);
  message.set_trainer_rank(manifest.trainer_rank.value());
  message.set_version(manifest.version.value());
  message.set_base_version(manifest.base_version.value());
  Store(manifest.layout_signature, *message.mutable_layout_signature());
  for (const SliceDelta& slice : manifest.slices) Store(slice, *message.add_slices());
  Store(manifest.state_token, *message.mutable_state_token());
  std::vector<std::byte> bytes(message.ByteSizeLong());
  DWS_CHECK(message.SerializeToArray(bytes.data(), static_cast<int>(bytes.size())));
  return bytes;
}

Result<DeltaManifest> DeserializeManifest(ByteSpan bytes, const RankLayout* layout) {
  v1::DeltaManifest message;
  if (bytes.size() > limits::kManifestBytesMax) {
    return DataLossError("manifest: {} bytes, at most {} are possible", bytes.size(),
                         limits::kManifestBytesMax);
  }
  DWS_RETURN_IF_ERROR(ShapeChecker(bytes, layout).Check(*v1::DeltaManifest::descriptor()));
  if (!message.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLossError("manifest: {} bytes are not a DeltaManifest", bytes.size());
  }
  DeltaManifest manifest{.stream = {.incarnation = message.stream().incarnation(),
                                    .id_hi = message.stream().id_hi(),
                                    .id_lo = message.stream().id_lo()},
                         .trainer_rank = TrainerRank(message.trainer_rank()),
                         .version = WeightVersion(message.version()),
                         .base_version = WeightVersion(message.base_version()),
                         .layout_signature = Load(message.layout_signature()),
                         .slices = {},
                         .state_token = Load(message.state_token())};
  manifest.slices.reserve(static_cast<size_t>(message.slices_size()));
  for (const v1::SliceDelta& slice : message.slices()) {
    auto loaded = Load(slice);
    if (!loaded.ok()) {
      return Annotate(loaded.status(), fmt::format("manifest: slice {}", slice.rank_slice()));
    }
    manifest.slices.push_back(*std::move(loaded));
  }
  return manifest;
}

uint64_t ManifestBytesMax(const RankLayout& layout) {
  const uint64_t bytes = kIdentityBytesMax + layout.slice_count() * kSliceBytesMax +
                         layout.block_count() * kFrameEntryBytesMax;
  return std::min(bytes, limits::kManifestBytesMax);
}

Status CheckManifest(const DeltaManifest& manifest, const RankLayout& layout,
                     uint64_t frames_bytes) {
  if (manifest.layout_signature != layout.signature()) {
    return FailedPreconditionError("manifest: made for layout {}, expected {}",
                                   ToString(manifest.layout_signature),
                                   ToString(layout.signature()));
  }
  return CheckContents(manifest, &layout, frames_bytes);
}

Status CheckManifestAlone(const DeltaManifest& manifest, uint64_t frames_bytes) {
  return CheckContents(manifest, nullptr, frames_bytes);
}

}  // namespace dws
