// A frame for one slice, valid or of arbitrary bytes, staged against contiguous and strided engine
// memory, under any budget. It is refused as the decoder refuses it, or its predicted digests and
// its staged writes are those of decoding it block by block. Nothing is written before the scatter,
// and no more memory is used than the budget has.
#include "common/base/check.h"
#include "common/delta/bits/checksum.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "receiver_daemon/weights/frame_stager.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/objects.h"
#include "tests/fuzz/fuzz_input.h"

namespace dws::fuzz {
namespace {

RankLayout LayoutOf(DType dtype, uint64_t elements) {
  Result<RankLayout> layout = RankLayout::Create(
      {{.tensor = {.name = "w", .dtype = dtype, .shape = {elements}, .cuts = {}}}});
  DWS_CHECK(layout.ok());
  return *std::move(layout);
}

// A copy of the slice in its own memory, in runs of `run_elements` with gaps between them.
struct Place {
  Place(const Bytes& content, uint32_t width, uint64_t run_elements, uint64_t gap)
      : element_bytes(width) {
    const uint64_t run_count = content.size() / width / run_elements;
    memory.resize(run_count * (run_elements + gap) * width);
    const Result<SegmentMap> created = SegmentMap::Create(memory, 0,
                                                          {.run_elements = run_elements,
                                                           .run_count = run_count,
                                                           .stride_elements = run_elements + gap},
                                                          width);
    DWS_CHECK(created.ok());
    map = *created;
    map.Write(0, content);
  }
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;
  Bytes Read() const {
    Bytes content(map.element_count() * element_bytes);
    map.Gather(0, content);
    return content;
  }

  uint32_t element_bytes;
  Bytes memory;
  SegmentMap map;
};

// The largest divisor of `elements` up to `most`.
uint64_t RunOf(uint64_t elements, uint64_t most) {
  uint64_t run = std::min(elements, most);
  while (elements % run != 0) --run;
  return run;
}

// Changes of every block, encoded in the modes that the input selects.
Bytes SoundFrame(FuzzInput& input, const RankLayout& layout, const Bytes& before,
                 const std::optional<ClassTable>& classes) {
  const DType dtype = layout.slices()[0].dtype;
  const auto kind = input.Take<uint8_t>();
  const EncodeOptions options{.relative = kind % 4 != 3, .absolute = kind % 4 >= 2};
  Bytes after = before;
  const size_t block_bytes = size_t{limits::kBlockElements} * ElementBytes(dtype);
  for (size_t at = 0; at < after.size(); at += block_bytes) {
    const size_t size = std::min(block_bytes, after.size() - at);
    TakeChanges(input, dtype, input.Take<uint8_t>(), MutableByteSpan(after).subspan(at, size));
  }
  samples::Encoding encoding = samples::EncodeState(layout, {before}, {after}, options);
  if (kind % 4 == 1 && classes.has_value()) {
    samples::SplitEveryBlock(layout, {before}, {after}, *classes, encoding);
  }
  return BuildFrame(encoding.blocks[0]);
}

// The slice after the frame, decoded block by block.
Result<Bytes> Apply(const RankLayout::SliceEntry& slice, const SpooledFrame& spooled,
                    ByteSpan frame, const Bytes& before) {
  DWS_ASSIGN_OR_RETURN(const auto blocks, ParseFrame(frame, spooled.entry));
  if (blocks.size() > slice.blocks) return DataLossError("{} blocks", blocks.size());
  Bytes after = before;
  DecodedBlock decoded;
  for (uint32_t b = 0; b < blocks.size(); ++b) {
    const size_t element_bytes = ElementBytes(slice.dtype);
    const uint32_t elements = BlockElements(slice.elements, b);
    const MutableByteSpan block = MutableByteSpan(after).subspan(
        size_t{b} * limits::kBlockElements * element_bytes, elements * element_bytes);
    const ClassTable* const classes = spooled.classes.has_value() ? &*spooled.classes : nullptr;
    DWS_RETURN_IF_ERROR(DecodeBlock(slice.dtype, elements, blocks[b], decoded,
                                    {.classes = classes, .before = block}));
    ApplyBlock(slice.dtype, decoded, block);
  }
  return after;
}

void Check(const RankLayout::SliceEntry& slice, const SpooledFrame& spooled, ByteSpan frame,
           std::span<const Place> places, uint64_t budget_bytes) {
  const Bytes before = places[0].Read();
  std::vector<SegmentMap> maps;
  for (const Place& place : places) maps.push_back(place.map);
  Spool spool({.folder = "", .memory_bytes_max = frame.size(), .size_bytes_max = frame.size()});
  DWS_CHECK(spool.Append(frame).ok());
  StagingBudget budget(budget_bytes);
  FrameStager stager(budget);
  const FrameStager::Staged staged = stager.Stage(slice, maps, spooled, spool);
  const Result<Bytes> after = Apply(slice, spooled, frame, before);

  DWS_CHECK(budget.bytes() <= budget_bytes && stager.writes().size_bytes() <= budget.bytes());
  DWS_CHECK(staged.status.code() == after.status().code());
  for (const Place& place : places) DWS_CHECK(place.Read() == before);
  if (!after.ok()) return;
  for (const Digest& difference : staged.differences) {
    DWS_CHECK(DigestBytes(before, slice.first_word) + difference ==
              DigestBytes(*after, slice.first_word));
  }
  if (budget.passed()) return;
  stager.writes().Scatter();
  for (const Place& place : places) DWS_CHECK(place.Read() == *after);
}

void Run(FuzzInput input) {
  const auto kind = input.Take<uint8_t>();
  const DType dtype = TakeDType(input);
  const uint32_t element_bytes = ElementBytes(dtype);
  // A second block is slow, so used rarely.
  const uint64_t elements =
      TakeElementCount(input) + (kind % 16 == 15 ? limits::kBlockElements : 0);
  const RankLayout layout = LayoutOf(dtype, elements);
  const Bytes before = TakeBlock(input, elements * element_bytes);
  const uint64_t run = RunOf(elements, uint64_t{input.Take<uint8_t>()} + 1);
  const Place places[] = {Place(before, element_bytes, kind % 2 == 0 ? elements : run, 0),
                          Place(before, element_bytes, run, 3)};
  // From a few bytes to more than any input needs.
  const uint64_t budget_bytes = uint64_t{1} << input.Take<uint8_t>() % 24;
  const std::optional<ClassTable> classes = TakeClassTable(input);
  const Bytes frame = kind / 16 % 2 == 0 ? SoundFrame(input, layout, before, classes)
                                         : Bytes(input.rest().begin(), input.rest().end());
  if (frame.size() < kFrameHeaderBytes) return;
  const SpooledFrame spooled{.slice = RankSlice(0),
                             .entry = {.block_count = LoadLe<uint32_t>(frame.data()),
                                       .size_bytes = frame.size(),
                                       .checksum = FrameChecksum(frame)},
                             .classes = classes};
  Check(layout.slices()[0], spooled, frame, places, budget_bytes);
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
