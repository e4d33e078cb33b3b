#include "tools/checkpoint/parts/delta_chain.h"

#include <algorithm>
#include <utility>

#include "common/delta/decoder.h"
#include "common/delta/objects/delta_link.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/object.h"
#include "tools/checkpoint/parts/tensors.h"

namespace dws::checkpoint {

Result<DeltaFile> DeltaFile::Open(const std::string& path, const RankLayout& layout) {
  DWS_ASSIGN_OR_RETURN(MappedFile mapping, MappedFile::Open(path, FileAccess::kReadOnly));
  DeltaFile delta(std::move(mapping));
  const ByteSpan bytes = delta.mapping_.bytes();
  const Result<ObjectHeader> header = ParseObjectHeader(bytes);
  if (!header.ok()) return Annotate(header.status(), path);
  if (header->total_bytes() != bytes.size()) {
    return DataLossError("{}: {} bytes, its header says {}", path, bytes.size(),
                         header->total_bytes());
  }
  Result<DeltaManifest> manifest = ParseObjectManifest(bytes, layout);
  if (absl::IsFailedPrecondition(manifest.status())) {
    return FailedPreconditionError(
        "{}: made for tensors of other names, dtypes or shapes than those of the checkpoint ({})",
        path, Message(manifest.status()));
  }
  if (!manifest.ok()) return Annotate(manifest.status(), path);
  delta.header_ = *header;
  delta.manifest_ = *std::move(manifest);
  return delta;
}

ByteSpan DeltaFile::Frame(const FrameEntry& entry) const {
  return FrameBytes(mapping_.bytes(), header_, entry);
}

const SliceDelta* DeltaFile::Find(RankSlice slice) const {
  const auto found = std::lower_bound(
      manifest_.slices.begin(), manifest_.slices.end(), slice,
      [](const SliceDelta& delta, RankSlice wanted) { return delta.slice < wanted; });
  return found != manifest_.slices.end() && found->slice == slice ? &*found : nullptr;
}

namespace {

// Compares weights too: version numbers alone prove nothing, because `pack` takes them from its
// command line.
Status CheckFollows(std::span<const DeltaFile> chain, const DeltaFile& next,
                    const RankLayout& layout) {
  std::vector<std::string> other;
  for (const SliceDelta& slice : next.manifest().slices) {
    for (size_t i = chain.size(); i-- > 0;) {
      const SliceDelta* const last = chain[i].Find(slice.slice);
      if (last == nullptr) continue;
      if (last->after != slice.before) other.push_back(layout.tensor(slice.slice).name);
      break;
    }
  }
  if (other.empty()) return OkStatus();
  return FailedPreconditionError(
      "{} does not follow {}: it begins with another version {}, with other weights of {}",
      next.path(), chain.back().path(), next.manifest().base_version.value(), NameList(other));
}

}  // namespace

Result<std::vector<DeltaFile>> OpenChain(std::span<const std::string> paths,
                                         const RankLayout& layout) {
  std::vector<DeltaFile> chain;
  for (const std::string& path : paths) {
    DWS_ASSIGN_OR_RETURN(DeltaFile delta, DeltaFile::Open(path, layout));
    if (!chain.empty()) {
      const DeltaManifest& last = chain.back().manifest();
      const DeltaManifest& next = delta.manifest();
      if (next.base_version != last.version || next.stream != last.stream) {
        return FailedPreconditionError(
            "{} leads from version {} of stream {} to {}, {} before it leads to version {} of "
            "stream {}; give deltas in order and without a gap",
            path, next.base_version.value(), ToString(next.stream), next.version.value(),
            chain.back().path(), last.version.value(), ToString(last.stream));
      }
      DWS_RETURN_IF_ERROR(CheckFollows(chain, delta, layout));
    }
    chain.push_back(std::move(delta));
  }
  return chain;
}

struct ChainSource::Scratch {
  std::vector<LastFrame> frames;  // one per delta
  std::vector<std::byte> after;
  DecodedBlock decoded;
};

ChainSource::ChainSource(const RankLayout& layout, std::vector<ByteSpan> base,
                         std::span<const DeltaFile> chain, size_t worker_count)
    : layout_(layout), base_(std::move(base)), chain_(chain) {
  for (size_t i = 0; i < worker_count; ++i) {
    scratch_.push_back(std::make_unique<Scratch>());
    scratch_.back()->frames.resize(chain.size());
  }
}

ChainSource::~ChainSource() = default;

Result<EncodedBlockView> ChainSource::Find(const DeltaFile& delta, size_t link,
                                           const SliceDelta& slice, uint32_t block,
                                           Scratch& scratch) {
  return scratch.frames[link].Find(slice, block, [&](const FrameEntry& entry) {
    auto parsed = ParseFrame(delta.Frame(entry), entry);
    if (parsed.ok()) return parsed;
    return Result<std::vector<EncodedBlockView>>(
        Annotate(parsed.status(),
                 fmt::format("{}, tensor '{}'", delta.path(), layout_.tensor(slice.slice).name)));
  });
}

Result<BlockStates> ChainSource::Read(RankSlice slice, uint32_t block, size_t worker) {
  return Follow(slice, block, worker, {});
}

Result<BlockStates> ChainSource::Follow(RankSlice number, uint32_t block, size_t worker,
                                        std::span<Digest> differences) {
  const RankLayout::SliceEntry& entry = layout_.slice(number);
  Scratch& scratch = *scratch_[worker];
  const ByteSpan before = Before(number, block);
  BlockStates states{.before = before, .after = before};
  const uint64_t first_word = entry.BlockFirstWord(block);
  for (size_t link = 0; link < chain_.size(); ++link) {
    if (!differences.empty()) differences[link] = Digest();
    const SliceDelta* const slice = chain_[link].Find(number);
    if (slice == nullptr) continue;
    DWS_ASSIGN_OR_RETURN(const EncodedBlockView view,
                         Find(chain_[link], link, *slice, block, scratch));
    if (view.mode == BlockMode::kEmpty) continue;
    if (states.after.data() == before.data()) {
      scratch.after.assign(before.begin(), before.end());
      states.after = scratch.after;
    }
    if (!differences.empty()) differences[link] -= DigestBytes(scratch.after, first_word);
    const Status advanced =
        AdvanceBlock(entry.dtype, view, slice->classes.has_value() ? &*slice->classes : nullptr,
                     scratch.after, scratch.decoded);
    if (!advanced.ok()) {
      return Annotate(advanced, fmt::format("{}, tensor '{}', block {}", chain_[link].path(),
                                            layout_.tensor(number).name, block));
    }
    if (!differences.empty()) differences[link] += DigestBytes(scratch.after, first_word);
  }
  return states;
}

}  // namespace dws::checkpoint
