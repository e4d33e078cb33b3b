#include "receiver_daemon/transfer/shared/shared_files.h"

#include <algorithm>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/object.h"
#include "common/delta/squash.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "common/transport/shared_fs/verified_file.h"
#include "proto/shared_fs.pb.h"

namespace dws {
namespace {

using shared::VerifiedFile;

Result<VerifiedFile> OpenOf(const SharedPlace& place, const shared::Manifest& manifest,
                            std::string_view name) {
  const shared::FileEntry* const entry = manifest.Find(name);
  if (entry == nullptr) {
    return DataLossError("version {} has no {}", manifest.name.version.value(), name);
  }
  auto file = VerifiedFile::Open(place.files, place.FolderOf(manifest), *entry);
  if (!file.ok()) return place.Explain(file.status(), manifest);
  return file;
}

// A delta whose frames are read when they are needed.
struct FiledDelta {
  VerifiedFile file;
  ObjectHeader header;
  DeltaManifest manifest;
  uint64_t frames_begin = 0;

  // `wanted`: see Spool::Options.
  DeltaLink link(const std::function<bool()>& wanted) {
    return {.manifest = &manifest,
            .frame = [this, &wanted](const FrameEntry& entry,
                                     std::vector<std::byte>& buffer) -> Result<ByteSpan> {
              if (wanted && !wanted())
                return CancelledError("version {}", manifest.version.value());
              return file.Read(frames_begin + entry.offset, entry.size_bytes, buffer);
            }};
  }
};

Result<std::unique_ptr<FiledDelta>> OpenDelta(const SharedPlace& place,
                                              const shared::Manifest& manifest,
                                              const RankLayout& layout) {
  DWS_ASSIGN_OR_RETURN(VerifiedFile file, OpenOf(place, manifest, shared::kDeltaName));
  std::vector<std::byte> buffer;
  DWS_ASSIGN_OR_RETURN(const ByteSpan start, file.Read(0, kObjectHeaderBytes, buffer));
  DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(start));
  if (header.total_bytes() != file.entry().size_bytes) {
    return DataLossError("{} has {} bytes, its header says {}", file.path(),
                         file.entry().size_bytes, header.total_bytes());
  }
  const uint64_t frames_begin = header.total_bytes() - header.frames_bytes;
  DWS_ASSIGN_OR_RETURN(const ByteSpan head, file.Read(0, frames_begin, buffer));
  auto parsed = ParseObjectManifest(head, layout);
  if (!parsed.ok()) return Annotate(parsed.status(), file.path());
  if (parsed->stream != manifest.stream || parsed->version != manifest.name.version ||
      parsed->base_version != manifest.base) {
    return DataLossError("{} is version {} from {}, its manifest says {} from {}", file.path(),
                         parsed->version.value(), parsed->base_version.value(),
                         manifest.name.version.value(), manifest.base->value());
  }
  return std::make_unique<FiledDelta>(FiledDelta{.file = std::move(file),
                                                 .header = header,
                                                 .manifest = *std::move(parsed),
                                                 .frames_begin = frames_begin});
}

Result<std::vector<std::unique_ptr<FiledDelta>>> OpenDeltas(
    const SharedPlace& place, std::span<const shared::ManifestPtr> chain,
    const RankLayout& layout) {
  std::vector<std::unique_ptr<FiledDelta>> deltas;
  for (const shared::ManifestPtr& manifest : chain) {
    DWS_ASSIGN_OR_RETURN(auto delta, OpenDelta(place, *manifest, layout));
    deltas.push_back(std::move(delta));
  }
  return deltas;
}

// What of the ranges is at or after `begin`.
std::vector<shared::FileRange> FileRangesOf(std::span<const ObjectRange> ranges, uint64_t begin) {
  std::vector<shared::FileRange> of;
  for (const ObjectRange& range : ranges) {
    const uint64_t end = range.offset + range.size_bytes;
    const uint64_t from = std::max(range.offset, begin);
    if (from < end) of.push_back({.offset = from, .size_bytes = end - from});
  }
  return of;
}

// The deltas' frames of these slices will be read.
void ReadAhead(const std::vector<std::unique_ptr<FiledDelta>>& deltas, const SliceSelection& slices,
               uint64_t bytes_max) {
  for (const auto& delta : deltas) {
    const std::vector<ObjectRange> ranges = PartRanges(delta->header, delta->manifest, slices);
    delta->file.WillRead(FileRangesOf(ranges, delta->frames_begin), bytes_max / deltas.size());
  }
}

// `wanted` outlives them.
std::vector<DeltaLink> LinksOf(const std::vector<std::unique_ptr<FiledDelta>>& deltas,
                               const std::function<bool()>& wanted) {
  std::vector<DeltaLink> links;
  for (const auto& delta : deltas) links.push_back(delta->link(wanted));
  return links;
}

// Composes several deltas into one object. `old`: null if there are no weights to compose over.
Result<std::vector<std::byte>> Compose(const SharedPlace& place, const RankLayout& layout,
                                       const std::vector<DeltaLink>& links, const OldWeights* old,
                                       uint64_t bytes_max) {
  if (std::ranges::none_of(links, NeedsOldWeights)) return Squash(layout, links);
  if (old == nullptr) {
    return AbortedError("{} deltas have class-split blocks, which are composed over old weights",
                        links.size());
  }
  auto object = SquashOver(layout, links, *old, bytes_max, place.pool);
  if (!absl::IsResourceExhausted(object.status())) return object;
  return AbortedError("{}, a third of the memory for them", Message(object.status()));
}

// Finds the frames of the wanted slices. Each block of these slices is in exactly one frame.
Result<std::vector<std::pair<RankSlice, FrameEntry>>> FindFrames(
    const SharedPlace& place, const shared::Manifest& anchor, const RankLayout& layout,
    std::span<const RankSlice> slices) {
  DWS_ASSIGN_OR_RETURN(VerifiedFile file, OpenOf(place, anchor, shared::kFullIndexName));
  if (file.entry().size_bytes > limits::kManifestBytesMax) {
    return DataLossError("{} has {} bytes, at most {} are supported", file.path(),
                         file.entry().size_bytes, limits::kManifestBytesMax);
  }
  std::vector<std::byte> bytes;
  DWS_RETURN_IF_ERROR(file.Read(0, file.entry().size_bytes, bytes).status());
  v1::SharedFullIndex index;
  if (!index.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return DataLossError("{} is not a SharedFullIndex", file.path());
  }
  std::vector<std::pair<RankSlice, FrameEntry>> frames;
  int at = 0;
  for (const RankSlice slice : slices) {
    while (at < index.slices_size() && index.slices(at).rank_slice() < slice.value()) ++at;
    uint64_t blocks = 0;
    if (at < index.slices_size() && index.slices(at).rank_slice() == slice.value()) {
      for (const v1::FrameEntry& message : index.slices(at).frames()) {
        const FrameEntry entry = FromProto(message);
        if (entry.first_block != blocks || entry.block_count == 0 ||
            entry.size_bytes > limits::kFrameBytesMax) {
          return DataLossError("{}: a frame of slice {}, blocks {} + {}, was not expected",
                               file.path(), slice.value(), entry.first_block, entry.block_count);
        }
        blocks += entry.block_count;
        frames.emplace_back(slice, entry);
      }
    }
    if (blocks != layout.slice(slice).blocks) {
      return DataLossError("{} has {} blocks of slice {}, expected {}", file.path(), blocks,
                           slice.value(), layout.slice(slice).blocks);
    }
  }
  return frames;
}

// Applies the deltas to frames of an anchor, in place: finds the changes of its blocks in order, as
// the deltas' frames are read, then decodes them block by block.
class FrameAdvance {
 public:
  FrameAdvance(const RankLayout& layout, const std::vector<DeltaLink>& links, ThreadPool& pool)
      : layout_(layout),
        links_(links.begin(), links.end()),
        pool_(pool),
        decoded_(pool.worker_count()) {}

  // `blocks` are those of `frame`; the first of them is block `first` of the slice.
  Status Apply(RankSlice slice, uint32_t first, MutableByteSpan frame,
               std::span<const EncodedBlockView> blocks) {
    std::vector<std::vector<Change>> changes(blocks.size());
    bool changed = false;
    for (LinkReader& link : links_) {
      const ClassTable* const classes = ClassesOf(link.link(), slice);
      for (uint32_t i = 0; i < blocks.size(); ++i) {
        DWS_ASSIGN_OR_RETURN(const EncodedBlockView found, link.Find(slice, first + i));
        if (found.mode == BlockMode::kEmpty) continue;
        changed = true;
        // The reader's view ends with its next frame.
        changes[i].push_back({.block = {.mode = found.mode,
                                        .nnz = found.nnz,
                                        .parameters = found.parameters,
                                        .payload = {found.payload.begin(), found.payload.end()}},
                              .classes = classes});
      }
    }
    if (!changed) return OkStatus();
    std::vector<Status> statuses(blocks.size());
    pool_.ParallelFor(blocks.size(), [&](size_t i, size_t worker) {
      const auto offset = static_cast<size_t>(blocks[i].payload.data() - frame.data());
      statuses[i] = ApplyAll(slice, first + static_cast<uint32_t>(i), blocks[i], changes[i],
                             frame.subspan(offset, blocks[i].payload.size()), decoded_[worker]);
    });
    for (const Status& status : statuses) DWS_RETURN_IF_ERROR(status);
    return OkStatus();
  }

 private:
  struct Change {
    EncodedBlock block;
    const ClassTable* classes = nullptr;
  };

  Status ApplyAll(RankSlice number, uint32_t block, const EncodedBlockView& full,
                  const std::vector<Change>& changes, MutableByteSpan payload,
                  DecodedBlock& decoded) const {
    const RankLayout::SliceEntry& slice = layout_.slice(number);
    const uint32_t elements = BlockElements(slice.elements, block);
    if (full.mode != BlockMode::kDenseRaw ||
        payload.size() != size_t{elements} * ElementBytes(slice.dtype)) {
      return DataLossError("slice {}, block {}: full tensors with a {} block of {} bytes",
                           number.value(), block, ToString(full.mode), payload.size());
    }
    for (const Change& change : changes) {
      DWS_RETURN_IF_ERROR(
          AdvanceBlock(slice.dtype, ViewOf(change.block), change.classes, payload, decoded));
    }
    return OkStatus();
  }

  const RankLayout& layout_;
  std::vector<LinkReader> links_;
  ThreadPool& pool_;
  std::vector<DecodedBlock> decoded_;  // by worker
};

// The contents of raw blocks that lie one after the other; empty: they do not.
ByteSpan RawBytes(std::span<const EncodedBlockView> blocks) {
  const std::byte* end = blocks.empty() ? nullptr : blocks.front().payload.data();
  const std::byte* const begin = end;
  for (const EncodedBlockView& block : blocks) {
    if (block.mode != BlockMode::kDenseRaw || block.payload.data() != end) return {};
    end += block.payload.size();
  }
  return {begin, end};
}

}  // namespace

std::string SharedPlace::FolderOf(const shared::Manifest& manifest) const {
  return fmt::format("{}/{}", stream_folder, shared::VersionFolderName(manifest.name));
}

Status SharedPlace::Explain(const Status& status, const shared::Manifest& manifest) const {
  if (!absl::IsNotFound(status) || manifest.name.version >= newest_anchor) return status;
  return AbortedError(
      "{}: version {} is before the newest full tensors, those of {}, and is being removed",
      Message(status), manifest.name.version.value(), newest_anchor.value());
}

Result<Spool> ReadSharedObject(const SharedPlace& place, std::span<const shared::ManifestPtr> chain,
                               const RankLayout& layout, const DeltaWant& want,
                               Spool::Options options) {
  AttemptProgress progress(std::exchange(options.progress, nullptr));  // the spool's as well
  const uint64_t ahead = std::min(place.ahead_bytes_max, options.memory_bytes_max / 8);
  options.memory_bytes_max -= ahead;
  if (chain.size() > 1) {
    uint64_t bytes = 0;
    for (const auto& manifest : chain) bytes += manifest->Find(shared::kDeltaName)->size_bytes;
    // Three copies: the blocks as they are composed, the object that they become, and the spool's
    // copy of it.
    if (bytes > options.memory_bytes_max / 3) {
      return AbortedError("{} deltas of {} bytes take three times that to compose, there are {}",
                          chain.size(), bytes, options.memory_bytes_max);
    }
    progress.Expect(bytes);
    DWS_ASSIGN_OR_RETURN(const auto deltas, OpenDeltas(place, chain, layout));
    ReadAhead(deltas, std::nullopt, ahead);
    if (options.spare != nullptr) options.spare->MakeRoom(options.memory_bytes_max / 3 * 2);
    DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> object,
                         Compose(place, layout, LinksOf(deltas, options.wanted), want.old,
                                 options.memory_bytes_max / 3));
    options.size_bytes_max = options.size_bytes_expected = object.size();
    Spool spool(std::move(options));
    DWS_RETURN_IF_ERROR(spool.Append(object));
    progress.Arrived(bytes);
    progress.Keep();
    return spool;
  }
  DWS_ASSIGN_OR_RETURN(const auto delta, OpenDelta(place, *chain.front(), layout));
  const std::vector<ObjectRange> ranges = PartRanges(delta->header, delta->manifest, want.slices);
  const uint64_t bytes = SizeOf(ranges);
  options.size_bytes_max = options.size_bytes_expected = bytes;
  progress.Expect(bytes);
  delta->file.WillRead(FileRangesOf(ranges, 0), ahead);
  Spool spool(std::move(options));
  std::vector<std::byte> buffer;
  for (ObjectRange range : ranges) {
    while (range.size_bytes > 0) {
      const uint64_t size = std::min<uint64_t>(range.size_bytes, limits::kSharedPieceBytes);
      DWS_ASSIGN_OR_RETURN(const ByteSpan part, delta->file.Read(range.offset, size, buffer));
      DWS_RETURN_IF_ERROR(spool.Append(part));
      progress.Arrived(size);
      range.offset += size;
      range.size_bytes -= size;
    }
  }
  progress.Keep();
  return spool;
}

Status ReadSharedFull(const SharedPlace& place, const shared::FullPath& path,
                      const std::function<bool()>& wanted, FullAssembly& assembly) {
  const RankLayout& layout = assembly.layout();
  std::vector<RankSlice> slices;
  for (const BlockRange& range : assembly.Missing()) {
    if (slices.empty() || slices.back() != range.slice) slices.push_back(range.slice);
  }
  DWS_ASSIGN_OR_RETURN(const auto frames, FindFrames(place, *path.anchor, layout, slices));
  DWS_ASSIGN_OR_RETURN(VerifiedFile file, OpenOf(place, *path.anchor, shared::kFullName));
  DWS_ASSIGN_OR_RETURN(const auto deltas, OpenDeltas(place, path.deltas, layout));
  ReadAhead(deltas, slices, place.ahead_bytes_max / 2);
  std::vector<shared::FileRange> ranges;
  for (const auto& [number, entry] : frames) {
    ranges.push_back({.offset = entry.offset, .size_bytes = entry.size_bytes});
  }
  file.WillRead(ranges, deltas.empty() ? place.ahead_bytes_max : place.ahead_bytes_max / 2);
  FrameAdvance advance(layout, LinksOf(deltas, wanted), place.pool);
  std::vector<std::byte> buffer;
  DecodedBlock decoded;
  for (const auto& [number, entry] : frames) {
    if (!wanted()) return CancelledError("version {}", path.anchor->name.version.value());
    DWS_RETURN_IF_ERROR(file.Read(entry.offset, entry.size_bytes, buffer).status());
    DWS_ASSIGN_OR_RETURN(const auto blocks, ParseFrame(buffer, entry));
    DWS_RETURN_IF_ERROR(advance.Apply(number, entry.first_block, buffer, blocks));
    const RankLayout::SliceEntry& slice = layout.slice(number);
    if (const ByteSpan raw = RawBytes(blocks); !raw.empty()) {
      DWS_RETURN_IF_ERROR(assembly.Take(
          {.slice = number, .first_block = entry.first_block, .block_count = entry.block_count},
          raw));
      continue;
    }
    for (uint32_t i = 0; i < blocks.size(); ++i) {
      const BlockRange block{
          .slice = number, .first_block = entry.first_block + i, .block_count = 1};
      DWS_RETURN_IF_ERROR(DecodeBlock(slice.dtype, BlockElements(slice.elements, block.first_block),
                                      blocks[i], decoded, {}));
      if (decoded.kind != DecodedBlock::Kind::kDense) {
        return DataLossError("block {} of a full tensor is not a full block", block.first_block);
      }
      DWS_RETURN_IF_ERROR(assembly.Take(block, decoded.dense));
    }
  }
  return OkStatus();
}

}  // namespace dws
