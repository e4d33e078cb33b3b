#include "tests/common/delta/objects.h"

#include "common/base/check.h"
#include "common/delta/bits/checksum.h"
#include "common/delta/blocks/class_statistics.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "common/delta/objects/manifest.h"
#include "common/delta/objects/object_writer.h"
#include "common/model/limits.h"

namespace dws::samples {
namespace {

struct BlockRange {
  uint32_t elements = 0;
  size_t begin_bytes = 0;
  size_t size_bytes = 0;
};

BlockRange RangeOf(const RankLayout::SliceEntry& slice, uint32_t block) {
  const size_t element_bytes = ElementBytes(slice.dtype);
  const uint32_t elements = BlockElements(slice.elements, block);
  return {.elements = elements,
          .begin_bytes = size_t{block} * limits::kBlockElements * element_bytes,
          .size_bytes = elements * element_bytes};
}

Status ApplyFrame(ByteSpan object, const ObjectHeader& header, const FrameEntry& entry,
                  const RankLayout::SliceEntry& slice, const ClassTable* classes, Bytes& bytes,
                  uint64_t& nnz) {
  DWS_ASSIGN_OR_RETURN(const std::vector<EncodedBlockView> blocks,
                       ParseFrame(FrameBytes(object, header, entry), entry));
  DecodedBlock decoded;
  for (uint32_t b = 0; b < blocks.size(); ++b) {
    const BlockRange range = RangeOf(slice, entry.first_block + b);
    const MutableByteSpan block =
        MutableByteSpan(bytes).subspan(range.begin_bytes, range.size_bytes);
    DWS_RETURN_IF_ERROR(DecodeBlock(slice.dtype, range.elements, blocks[b], decoded,
                                    {.classes = classes, .before = block}));
    ApplyBlock(slice.dtype, decoded, block);
    nnz += blocks[b].nnz;
  }
  return OkStatus();
}

Status CompareDigest(std::string_view what, const Digest& found, const Digest& expected) {
  if (found == expected) return OkStatus();
  return DataLossError("digest {} is {}, expected {}", what, ToString(found), ToString(expected));
}

}  // namespace

State RandomState(const RankLayout& layout, uint64_t seed) {
  State state;
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    Random random(seed + state.size());
    state.push_back(RandomBytes(random, slice.size_bytes()));
  }
  return state;
}

Encoding EncodeState(const RankLayout& layout, const State& before, const State& after,
                     const EncodeOptions& options) {
  Encoding encoding;
  BlockChanges changes;
  for (size_t s = 0; s < layout.slices().size(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slices()[s];
    std::vector<EncodedBlock>& blocks = encoding.blocks.emplace_back();
    encoding.before.push_back(DigestBytes(before[s], slice.first_word));
    encoding.after.push_back(encoding.before.back());
    for (uint32_t b = 0; b < slice.blocks; ++b) {
      const BlockRange range = RangeOf(slice, b);
      const ByteSpan block = ByteSpan(after[s]).subspan(range.begin_bytes, range.size_bytes);
      encoding.after.back() +=
          DiffBlock(slice.dtype, ByteSpan(before[s]).subspan(range.begin_bytes, range.size_bytes),
                    block, slice.first_word + range.begin_bytes / 8, changes);
      blocks.push_back(EncodeBlock(slice.dtype, changes, block, options));
    }
  }
  return encoding;
}

void SplitEveryBlock(const RankLayout& layout, const State& before, const State& after,
                     const ClassTable& table, Encoding& encoding) {
  BlockChanges changes;
  EncodeScratch scratch;
  encoding.classes.resize(layout.slice_count());
  for (size_t s = 0; s < layout.slices().size(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slices()[s];
    if (!TableFits(table, slice.dtype)) continue;
    encoding.classes[s] = table;
    for (uint32_t b = 0; b < slice.blocks; ++b) {
      const BlockRange range = RangeOf(slice, b);
      const ByteSpan old_block = ByteSpan(before[s]).subspan(range.begin_bytes, range.size_bytes);
      DiffBlock(slice.dtype, old_block,
                ByteSpan(after[s]).subspan(range.begin_bytes, range.size_bytes), 0, changes);
      if (changes.size() == 0) continue;
      PlanSplitRice(slice.dtype, changes, scratch.split_rice);
      PlanClassSplit(slice.dtype, changes, scratch.split_rice, old_block, table,
                     scratch.class_split);
      encoding.blocks[s][b] = WriteClassSplit(changes, scratch.split_rice, scratch.class_split);
    }
  }
}

ClassTables ChooseTables(const RankLayout& layout, const State& before, const State& after) {
  ClassTables tables;
  DecodedBlock steps{.kind = DecodedBlock::Kind::kSteps};
  BlockChanges changes;
  for (size_t s = 0; s < layout.slices().size(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slices()[s];
    ClassStatistics statistics;
    for (uint32_t b = 0; b < slice.blocks; ++b) {
      const BlockRange range = RangeOf(slice, b);
      const ByteSpan block = ByteSpan(after[s]).subspan(range.begin_bytes, range.size_bytes);
      DiffBlock(slice.dtype, ByteSpan(before[s]).subspan(range.begin_bytes, range.size_bytes),
                block, 0, changes);
      steps.positions = changes.positions;
      steps.values = changes.steps;
      statistics.Add(slice.dtype, steps, block);
    }
    tables.push_back(ChooseClassTable(slice.dtype, statistics, slice.blocks));
  }
  return tables;
}

void SplitWhereSmaller(const RankLayout& layout, const State& before, const State& after,
                       const ClassTables& tables, Encoding& encoding) {
  BlockChanges changes;
  EncodeScratch scratch;
  encoding.classes = tables;
  for (size_t s = 0; s < layout.slices().size(); ++s) {
    const RankLayout::SliceEntry& slice = layout.slices()[s];
    if (!tables[s].has_value()) continue;
    for (uint32_t b = 0; b < slice.blocks; ++b) {
      const BlockRange range = RangeOf(slice, b);
      const ByteSpan old_block = ByteSpan(before[s]).subspan(range.begin_bytes, range.size_bytes);
      DiffBlock(slice.dtype, old_block,
                ByteSpan(after[s]).subspan(range.begin_bytes, range.size_bytes), 0, changes);
      const EncodedBlock relative = EncodeSteps(slice.dtype, changes, range.elements, scratch);
      auto split = EncodeClassSplit(slice.dtype, changes, relative, old_block, *tables[s], scratch);
      if (split.has_value()) encoding.blocks[s][b] = *std::move(split);
    }
  }
}

DeltaManifest Identity(const RankLayout& layout, const Encoding& encoding, uint64_t base) {
  DeltaManifest manifest;
  manifest.stream = {.incarnation = 7, .id_hi = 0x0123456789ABCDEF, .id_lo = 0xFEDCBA9876543210};
  manifest.trainer_rank = TrainerRank(3);
  manifest.version = WeightVersion(base + 1);
  manifest.base_version = WeightVersion(base);
  manifest.layout_signature = layout.signature();
  manifest.state_token = StateToken(encoding.after);
  return manifest;
}

Bytes SealObject(const RankLayout& layout, const Encoding& encoding, uint64_t base) {
  return SealObject(encoding, Identity(layout, encoding, base));
}

Bytes SealObject(const Encoding& encoding, DeltaManifest identity) {
  ObjectWriter writer;
  for (uint32_t s = 0; s < encoding.blocks.size(); ++s) {
    const SliceEnd end{.slice = RankSlice(s),
                       .before = encoding.before[s],
                       .after = encoding.after[s],
                       .classes = encoding.classes.empty() ? std::nullopt : encoding.classes[s]};
    DWS_CHECK(writer.AddSlice(end, encoding.blocks[s]).ok());
  }
  return writer.Finish(std::move(identity));
}

Bytes PartOf(const Bytes& object, const RankLayout& layout, const SliceSelection& slices) {
  const Result<ObjectHeader> header = ParseObjectHeader(object);
  const Result<DeltaManifest> manifest = ParseObjectManifest(object, layout);
  if (!header.ok() || !manifest.ok() || header->total_bytes() != object.size()) return object;
  Bytes part;
  for (const ObjectRange& range : PartRanges(*header, *manifest, slices)) {
    const ByteSpan bytes = ByteSpan(object).subspan(range.offset, range.size_bytes);
    part.insert(part.end(), bytes.begin(), bytes.end());
  }
  return part;
}

Status ApplyObject(ByteSpan object, const RankLayout& layout, bool compare_base, State& state) {
  DWS_ASSIGN_OR_RETURN(const ObjectHeader header, ParseObjectHeader(object));
  DWS_ASSIGN_OR_RETURN(const DeltaManifest manifest, ParseObjectManifest(object, layout));
  if (object.size() != header.total_bytes()) {
    return DataLossError("object: {} bytes, expected {}", object.size(), header.total_bytes());
  }
  for (const SliceDelta& delta : manifest.slices) {
    const RankLayout::SliceEntry& slice = layout.slice(delta.slice);
    Bytes& bytes = state[delta.slice.value()];
    if (compare_base) {
      DWS_RETURN_IF_ERROR(
          CompareDigest("before", DigestBytes(bytes, slice.first_word), delta.before));
    }
    uint64_t nnz = 0;
    for (const FrameEntry& entry : delta.frames) {
      DWS_RETURN_IF_ERROR(ApplyFrame(object, header, entry, slice,
                                     delta.classes.has_value() ? &*delta.classes : nullptr, bytes,
                                     nnz));
    }
    if (nnz != delta.nnz) return DataLossError("{} changes, expected {}", nnz, delta.nnz);
    DWS_RETURN_IF_ERROR(CompareDigest("after", DigestBytes(bytes, slice.first_word), delta.after));
  }
  return OkStatus();
}

Bytes Assemble(const DeltaManifest& manifest, ByteSpan frames, uint32_t format_version) {
  const Bytes stored = SerializeManifest(manifest);
  constexpr uint8_t kMagic[] = {0x89, 'D', 'W', 'S', '\r', '\n', 0x1A, '\n'};
  Bytes object(kObjectHeaderBytes);
  std::memcpy(object.data(), kMagic, sizeof(kMagic));
  StoreLe(object.data() + 8, format_version);
  StoreLe(object.data() + 16, uint64_t{stored.size()});
  StoreLe(object.data() + 24, uint64_t{stored.size()});
  StoreLe(object.data() + 32, Checksum(stored));
  StoreLe(object.data() + 40, uint64_t{frames.size()});
  FixHeaderChecksum(object);
  object.insert(object.end(), stored.begin(), stored.end());
  object.insert(object.end(), frames.begin(), frames.end());
  return object;
}

void FixHeaderChecksum(Bytes& object) {
  StoreLe(object.data() + 56, Checksum(ByteSpan(object).first(56)));
}

}  // namespace dws::samples
