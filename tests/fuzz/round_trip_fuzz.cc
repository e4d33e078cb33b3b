// Structured input: an old block of any dtype and changes to it. Every encoding of the changes
// leads exactly to the new block, is not larger than it, and can be undone where it is relative.
#include "common/base/check.h"
#include "common/delta/blocks/class_split.h"
#include "common/delta/blocks/class_statistics.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/samples.h"
#include "tests/fuzz/fuzz_input.h"

namespace dws::fuzz {
namespace {

struct States {
  DType dtype;
  Bytes before;
  Bytes after;

  uint32_t elements() const { return static_cast<uint32_t>(before.size() / ElementBytes(dtype)); }
};

void CheckBlock(const States& states, const EncodedBlock& block, const BlockBase& base) {
  DWS_CHECK(block.payload.size() <= states.after.size());
  DecodedBlock decoded;
  DWS_CHECK(DecodeBlock(states.dtype, states.elements(), ViewOf(block), decoded, base).ok());
  Bytes state = states.before;
  ApplyBlock(states.dtype, decoded, state);
  DWS_CHECK(state == states.after);
  if (block.mode != BlockMode::kEmpty && !IsRelative(block.mode)) {
    Bytes other(state.size(), std::byte{0xA5});
    ApplyBlock(states.dtype, decoded, other);
    DWS_CHECK(block.mode == BlockMode::kRaw || other == states.after);
    return;
  }
  UndoBlock(states.dtype, decoded, state);
  DWS_CHECK(state == states.before);
}

// Changes composed with their inverse are nothing; composed with nothing they stay.
void CheckComposition(const States& states, const BlockChanges& changes) {
  BlockChanges back;
  DiffBlock(states.dtype, states.after, states.before, 0, back);
  DWS_CHECK(ComposeSteps(states.dtype, changes, back).size() == 0);
  const BlockChanges same = ComposeSteps(states.dtype, {}, changes);
  DWS_CHECK(same.positions == changes.positions && same.steps == changes.steps);
}

// The table of the input, or the one from the statistics of these changes.
std::optional<ClassTable> TakeTable(FuzzInput& input, const States& states,
                                    const BlockChanges& changes) {
  if (MappingOf(states.dtype) != Mapping::kFloat) return std::nullopt;
  if (input.Take<uint8_t>() % 32 != 31) return TakeClassTable(input);  // statistics are slow
  ClassStatistics statistics;
  const DecodedBlock steps{
      .kind = DecodedBlock::Kind::kSteps, .positions = changes.positions, .values = changes.steps};
  statistics.Add(states.dtype, steps, states.after);
  return ChooseClassTable(states.dtype, statistics, 1);
}

// Checks class-split even where it is not the smallest.
void CheckClassSplit(const States& states, const BlockChanges& changes, const ClassTable& table) {
  if (changes.size() == 0 || !TableFits(table, states.dtype)) return;
  EncodeScratch scratch;
  EncodedBlock relative = EncodeSteps(states.dtype, changes, states.elements(), scratch);
  const auto split =
      EncodeClassSplit(states.dtype, changes, relative, states.before, table, scratch);
  if (split.has_value()) {
    DWS_CHECK(split->payload.size() < relative.payload.size() + (relative.mode > split->mode));
    CheckBlock(states, *split, {.classes = &table, .before = states.before});
  }
  relative.payload.resize(states.after.size() * 2 + 1024);  // larger than any encoding
  const auto forced =
      EncodeClassSplit(states.dtype, changes, relative, states.before, table, scratch);
  DWS_CHECK(forced.has_value() && forced->mode == BlockMode::kClassSplit);
  DecodedBlock decoded;
  DWS_CHECK(DecodeBlock(states.dtype, states.elements(), ViewOf(*forced), decoded,
                        {.classes = &table, .before = states.before})
                .ok());
  DWS_CHECK(decoded.kind == DecodedBlock::Kind::kSteps);
  DWS_CHECK(decoded.positions == changes.positions && decoded.values == changes.steps);
}

void Run(FuzzInput input) {
  const bool zstd = input.Take<uint8_t>() % 16 == 15;  // slow, and not our code
  States states{.dtype = TakeDType(input)};
  const uint32_t element_count = TakeElementCount(input);
  states.before = TakeBlock(input, size_t{element_count} * ElementBytes(states.dtype));
  states.after = states.before;
  const size_t changes_max = input.Take<uint8_t>();
  TakeChanges(input, states.dtype, changes_max, states.after);

  BlockChanges changes;
  const Digest difference = DiffBlock(states.dtype, states.before, states.after, 5, changes);
  DWS_CHECK(DigestBytes(states.before, 5) + difference == DigestBytes(states.after, 5));
  CheckComposition(states, changes);
  const std::optional<ClassTable> table = TakeTable(input, states, changes);
  if (table.has_value()) CheckClassSplit(states, changes, *table);

  std::vector<EncodedBlock> blocks;
  for (const EncodeOptions& options :
       {EncodeOptions{.relative = true, .absolute = false, .zstd = false},
        EncodeOptions{.relative = true, .absolute = true, .zstd = zstd},
        EncodeOptions{.relative = false, .absolute = true, .zstd = zstd}}) {
    blocks.push_back(EncodeBlock(states.dtype, changes, states.after, options));
    CheckBlock(states, blocks.back(), {});
  }
  const Bytes frame = BuildFrame(blocks);
  const auto views = ParseFrameBlocks(frame, static_cast<uint32_t>(blocks.size()));
  DWS_CHECK(views.ok() && views->size() == blocks.size());
  for (size_t i = 0; i < blocks.size(); ++i) {
    const EncodedBlockView& view = (*views)[i];
    DWS_CHECK(view.mode == blocks[i].mode && view.nnz == blocks[i].nnz);
    DWS_CHECK(view.parameters == blocks[i].parameters);
    DWS_CHECK(std::equal(view.payload.begin(), view.payload.end(), blocks[i].payload.begin(),
                         blocks[i].payload.end()));
  }
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
