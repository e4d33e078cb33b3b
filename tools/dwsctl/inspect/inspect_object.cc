#include "tools/dwsctl/inspect/inspect_object.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>

#include "common/delta/bits/checksum.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/manifest.h"
#include "common/delta/objects/object.h"
#include "common/model/limits.h"
#include "tools/dwsctl/inspect/inspect_blocks.h"
#include "tools/dwsctl/inspect/inspect_manifest.h"
#include "tools/dwsctl/text/text_table.h"

namespace dws::dwsctl {
namespace {

struct ModeTotals {
  uint64_t blocks = 0;
  uint64_t nnz = 0;
  uint64_t payload_bytes = 0;
};

class ObjectInspection {
 public:
  ObjectInspection(const ByteFile& file, const RankLayout* layout, const InspectLimits& limits,
                   const InspectSink& sink)
      : file_(file), layout_(layout), limits_(limits), sink_(sink) {}

  Result<uint64_t> Run() {
    DWS_ASSIGN_OR_RETURN(const std::optional<ObjectHeader> header, Header());
    if (header.has_value()) {
      DWS_ASSIGN_OR_RETURN(const std::optional<DeltaManifest> manifest, Manifest(*header));
      if (manifest.has_value()) {
        DWS_RETURN_IF_ERROR(Frames(*header, *manifest));
        Facts(*header, *manifest);
      }
      if (header->total_bytes() < file_.size_bytes()) {
        Problem(header->total_bytes(), fmt::format("{} bytes after the end of the object",
                                                   file_.size_bytes() - header->total_bytes()));
      }
    }
    Tell(SummaryItem{.facts = std::move(facts_), .problems = problems_});
    return problems_;
  }

 private:
  void Tell(const InspectItem& item) {
    if (wanted_) wanted_ = sink_(item);
  }
  void Problem(uint64_t offset, std::string message) {
    ++problems_;
    Tell(ProblemItem{.offset = offset, .message = std::move(message)});
  }
  void Fields(const std::vector<FormatField>& fields, uint64_t base) {
    for (const FormatField& field : fields) {
      Tell(FieldItem{.offset = base + field.offset,
                     .size_bytes = field.size_bytes,
                     .name = std::string(field.name),
                     .value = field.value});
      if (field.problem.empty()) continue;
      Problem(base + field.offset, fmt::format("{}: {}", field.name, field.problem));
    }
  }
  // Reports the fields; returns how many bytes of the manifest can be read.
  uint64_t ManifestFieldsOf(ByteSpan manifest) {
    return InspectManifest(manifest, limits_, [this](const InspectItem& item) {
      Tell(item);
      return wanted_;
    });
  }
  // Returns nullopt if the header does not show where the rest is.
  Result<std::optional<ObjectHeader>> Header();
  Result<std::optional<DeltaManifest>> Manifest(const ObjectHeader& header);
  std::optional<DeltaManifest> ReadManifest(const ObjectHeader& header, ByteSpan stored);
  Status Frames(const ObjectHeader& header, const DeltaManifest& manifest);
  Status Slice(const SliceDelta& slice, uint64_t frames_begin, bool shown);
  void Frame(const SliceDelta& slice, const FrameEntry& entry, uint64_t offset, ByteSpan frame,
             bool shown, BlockCheck& check);
  void Facts(const ObjectHeader& header, const DeltaManifest& manifest);

  const ByteFile& file_;
  const RankLayout* const layout_;
  const InspectLimits limits_;
  const InspectSink& sink_;
  bool wanted_ = true;
  uint64_t problems_ = 0;
  uint64_t slice_nnz_ = 0;  // of the blocks of this slice
  bool slice_read_ = true;  // all blocks of this slice could be read
  std::map<BlockMode, ModeTotals> modes_;
  std::vector<std::pair<std::string, std::string>> facts_;
};

Result<std::optional<ObjectHeader>> ObjectInspection::Header() {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, file_.Read(0, kObjectHeaderBytes));
  Tell(SectionItem{.name = "header", .offset = 0, .size_bytes = bytes.size()});
  const uint64_t before = problems_;
  Fields(DescribeObjectHeader(bytes), 0);
  if (bytes.size() < kObjectHeaderBytes) {
    Problem(bytes.size(), fmt::format("cut off: a header has {} bytes", kObjectHeaderBytes));
    return std::nullopt;
  }
  const Status status = ParseObjectHeader(bytes).status();
  if (!status.ok() && problems_ == before) Problem(0, std::string(Message(status)));
  // Another format version has its fields elsewhere, so stop. With a damaged header, continue if
  // its sizes are possible.
  if (absl::IsUnimplemented(status)) return std::nullopt;
  const ObjectHeader header = LoadObjectHeader(bytes);
  const uint64_t behind = file_.size_bytes() - kObjectHeaderBytes;
  if (!status.ok() && (header.manifest_bytes > std::min(behind, limits::kManifestBytesMax) ||
                       header.manifest_raw_bytes > limits::kManifestBytesMax)) {
    return std::nullopt;
  }
  return header;
}

Result<std::optional<DeltaManifest>> ObjectInspection::Manifest(const ObjectHeader& header) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> stored,
                       file_.Read(kObjectHeaderBytes, header.manifest_bytes));
  Tell(SectionItem{.name = "manifest",
                   .offset = kObjectHeaderBytes,
                   .size_bytes = stored.size(),
                   .note = header.manifest_compressed
                               ? fmt::format("compressed; +offsets are in its {} bytes before that",
                                             header.manifest_raw_bytes)
                               : "+offsets are in it"});
  if (stored.size() < header.manifest_bytes) {
    Problem(kObjectHeaderBytes + stored.size(),
            fmt::format("cut off: {} of the manifest's {} bytes", stored.size(),
                        header.manifest_bytes));
    if (!header.manifest_compressed) ManifestFieldsOf(stored);
    return std::nullopt;
  }
  if (const uint64_t found = Checksum(stored); found != header.manifest_checksum) {
    Problem(kObjectHeaderBytes, fmt::format("manifest: checksum {:016x}, the header has {:016x}",
                                            found, header.manifest_checksum));
  }
  return ReadManifest(header, stored);
}

std::optional<DeltaManifest> ObjectInspection::ReadManifest(const ObjectHeader& header,
                                                            ByteSpan stored) {
  const Result<std::vector<std::byte>> raw = UnpackManifest(stored, header);
  if (!raw.ok()) {
    Problem(kObjectHeaderBytes, std::string(Message(raw.status())));
    return std::nullopt;
  }
  const uint64_t read_bytes = ManifestFieldsOf(*raw);
  Result<DeltaManifest> manifest = DeserializeManifest(*raw);
  if (!manifest.ok()) {
    Problem(kObjectHeaderBytes,
            fmt::format("{}; it can be read up to +{}", Message(manifest.status()), read_bytes));
    return std::nullopt;
  }
  const Status status = layout_ != nullptr ? CheckManifest(*manifest, *layout_, header.frames_bytes)
                                           : CheckManifestAlone(*manifest, header.frames_bytes);
  if (!status.ok()) Problem(kObjectHeaderBytes, std::string(Message(status)));
  return *std::move(manifest);
}

Status ObjectInspection::Frames(const ObjectHeader& header, const DeltaManifest& manifest) {
  const uint64_t begin = kObjectHeaderBytes + header.manifest_bytes;
  for (size_t i = 0; i < manifest.slices.size() && wanted_; ++i) {
    if (i == limits_.slices) {
      Tell(OmissionItem{fmt::format("frames of {} more slices, checked and not shown",
                                    manifest.slices.size() - i)});
    }
    DWS_RETURN_IF_ERROR(Slice(manifest.slices[i], begin, i < limits_.slices));
  }
  if (header.total_bytes() > file_.size_bytes()) {
    Problem(file_.size_bytes(),
            fmt::format("cut off: the object has {} bytes, {} are missing", header.total_bytes(),
                        header.total_bytes() - file_.size_bytes()));
  }
  return OkStatus();
}

Status ObjectInspection::Slice(const SliceDelta& slice, uint64_t frames_begin, bool shown) {
  const bool known = layout_ != nullptr && slice.slice.value() < layout_->slice_count();
  BlockCheck check(known ? &layout_->slice(slice.slice) : nullptr, slice.classes.has_value());
  slice_nnz_ = 0;
  slice_read_ = true;
  for (size_t i = 0; i < slice.frames.size() && wanted_; ++i) {
    const FrameEntry& entry = slice.frames[i];
    const uint64_t offset = frames_begin + std::min(entry.offset, limits::kObjectBytesMax);
    const uint64_t size = std::min(entry.size_bytes, limits::kFrameBytesMax);
    DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> frame, file_.Read(offset, size));
    const bool frame_shown = shown && i < limits_.frames;
    if (frame_shown) {
      std::string note = fmt::format("blocks {} to {}", entry.first_block,
                                     uint64_t{entry.first_block} + entry.block_count - 1);
      if (known) note += fmt::format(" of '{}'", layout_->tensor(slice.slice).name);
      Tell(SectionItem{.name = fmt::format("frame {} of slice {}", i, slice.slice.value()),
                       .offset = offset,
                       .size_bytes = frame.size(),
                       .note = note});
    } else if (shown && i == limits_.frames) {
      Tell(OmissionItem{fmt::format("{} more frames of slice {}, checked and not shown",
                                    slice.frames.size() - i, slice.slice.value())});
    }
    if (frame.size() < entry.size_bytes) {
      slice_read_ = false;
      if (frame_shown) Fields(DescribeFrameHeader(frame), offset);
      Problem(offset + frame.size(),
              fmt::format("cut off: frame {} of slice {} has {} of {} bytes", i,
                          slice.slice.value(), frame.size(), entry.size_bytes));
      continue;
    }
    Frame(slice, entry, offset, frame, frame_shown, check);
  }
  if (slice_read_ && slice_nnz_ != slice.nnz && wanted_) {
    Problem(kObjectHeaderBytes,
            fmt::format("slice {}: the manifest counts {} changes, its blocks have {}",
                        slice.slice.value(), slice.nnz, slice_nnz_));
  }
  return OkStatus();
}

void ObjectInspection::Frame(const SliceDelta& slice, const FrameEntry& entry, uint64_t offset,
                             ByteSpan frame, bool shown, BlockCheck& check) {
  if (const uint64_t found = FrameChecksum(frame); found != entry.checksum) {
    Problem(offset, fmt::format("frame of slice {}: checksum {:016x}, the manifest has {:016x}",
                                slice.slice.value(), found, entry.checksum));
  }
  if (shown) Fields(DescribeFrameHeader(frame), offset);
  const auto blocks = ParseFrameBlocks(frame, entry.block_count);
  if (!blocks.ok()) {
    slice_read_ = false;
    Problem(offset, std::string(Message(blocks.status())));
    return;
  }
  for (size_t i = 0; i < blocks->size() && wanted_; ++i) {
    const EncodedBlockView& block = (*blocks)[i];
    const auto number = entry.first_block + static_cast<uint32_t>(i);
    const uint64_t payload = offset + static_cast<uint64_t>(block.payload.data() - frame.data());
    ModeTotals& totals = modes_[block.mode];
    ++totals.blocks;
    totals.nnz += block.nnz;
    totals.payload_bytes += block.payload.size();
    slice_nnz_ += block.nnz;
    if (shown && i < limits_.blocks) {
      const std::string mode(ToString(block.mode));
      Tell(BlockItem{
          .block = number,
          .mode = mode == "unknown" ? fmt::format("{}", static_cast<int>(block.mode)) : mode,
          .nnz = block.nnz,
          .parameters = FormatParameters(block),
          .offset = payload,
          .size_bytes = block.payload.size()});
    } else if (shown && i == limits_.blocks) {
      Tell(OmissionItem{fmt::format("{} more blocks, checked and not shown", blocks->size() - i)});
    }
    const bool last = &entry == &slice.frames.back() && i + 1 == blocks->size();
    if (const auto problem = check.Check(block, number, last); problem.has_value()) {
      Problem(payload,
              fmt::format("block {} of slice {}: {}", number, slice.slice.value(), *problem));
    }
  }
}

void ObjectInspection::Facts(const ObjectHeader& header, const DeltaManifest& manifest) {
  const auto add = [this](std::string name, std::string value) {
    facts_.emplace_back(std::move(name), std::move(value));
  };
  add("stream", ToString(manifest.stream));
  add("trainer rank", fmt::format("{}", manifest.trainer_rank.value()));
  add("version", fmt::format("{} over {}", manifest.version.value(),
                             FormatVersion(manifest.base_version.value())));
  uint64_t nnz = 0;
  uint64_t frames = 0;
  for (const SliceDelta& slice : manifest.slices) {
    nnz += slice.nnz;
    frames += slice.frames.size();
  }
  add("slices, frames", fmt::format("{}, {}", manifest.slices.size(), frames));
  add("changes", fmt::format("{}", nnz));
  add("bytes", fmt::format("{} = header {} + manifest {} + frames {}", header.total_bytes(),
                           kObjectHeaderBytes, header.manifest_bytes, header.frames_bytes));
  if (nnz > 0) {
    add("bits a change", fmt::format("{:.2f}", 8.0 * static_cast<double>(header.total_bytes()) /
                                                   static_cast<double>(nnz)));
  }
  for (const auto& [mode, totals] : modes_) {
    const std::string name(ToString(mode));
    add("blocks " + (name == "unknown" ? fmt::format("{}", static_cast<int>(mode)) : name),
        fmt::format("{}, {} changes, {} of payload", totals.blocks, totals.nnz,
                    FormatBytes(totals.payload_bytes)));
  }
}

}  // namespace

Result<uint64_t> InspectObject(const ByteFile& file, const RankLayout* layout,
                               const InspectLimits& limits, const InspectSink& sink) {
  return ObjectInspection(file, layout, limits, sink).Run();
}

}  // namespace dws::dwsctl
