// Arbitrary bytes as an encoded block of any mode and dtype, with and without a base. They are
// refused, or they decode to possible changes that apply to any base, can be undone and can be
// encoded.
#include "common/base/check.h"
#include "common/delta/blocks/diff.h"
#include "common/delta/decoder.h"
#include "common/delta/encoder.h"
#include "common/model/limits.h"
#include "tests/common/delta/samples.h"
#include "tests/fuzz/fuzz_input.h"

namespace dws::fuzz {
namespace {

using Kind = DecodedBlock::Kind;

void CheckPossible(DType dtype, uint32_t element_count, const EncodedBlockView& block,
                   const DecodedBlock& decoded) {
  const uint64_t mask = ~uint64_t{0} >> (64 - ElementBytes(dtype) * 8);
  if (decoded.kind == Kind::kNothing) DWS_CHECK(block.nnz == 0);
  if (decoded.kind == Kind::kDense) {
    DWS_CHECK(decoded.dense.size() == size_t{element_count} * ElementBytes(dtype));
  }
  if (decoded.kind != Kind::kSteps && decoded.kind != Kind::kValues) return;
  DWS_CHECK(decoded.positions.size() == block.nnz && decoded.values.size() == block.nnz);
  int64_t last = -1;
  for (size_t i = 0; i < decoded.positions.size(); ++i) {
    DWS_CHECK(decoded.positions[i] > last && decoded.positions[i] < element_count);
    DWS_CHECK(decoded.values[i] <= mask);
    DWS_CHECK(decoded.kind == Kind::kValues || decoded.values[i] != 0);
    last = decoded.positions[i];
  }
}

// Steps equal the difference that applying them makes, can be undone, and are the same after
// encoding and decoding.
void CheckSteps(DType dtype, ByteSpan before, const DecodedBlock& decoded, MutableByteSpan after) {
  BlockChanges changes;
  DiffBlock(dtype, before, after, 0, changes);
  DWS_CHECK(changes.positions == decoded.positions && changes.steps == decoded.values);
  const auto element_count = static_cast<uint32_t>(before.size() / ElementBytes(dtype));
  const EncodedBlock encoded = EncodeSteps(dtype, changes, element_count);
  DecodedBlock again;
  DWS_CHECK(DecodeBlock(dtype, element_count, ViewOf(encoded), again).ok());
  DWS_CHECK(again.positions == decoded.positions && again.values == decoded.values);
  UndoBlock(dtype, decoded, after);
  DWS_CHECK(std::equal(before.begin(), before.end(), after.begin()));
}

void Run(FuzzInput input) {
  const DType dtype = TakeDType(input);
  EncodedBlockView block{.mode = static_cast<BlockMode>(input.Take<uint8_t>())};
  const uint32_t element_count = TakeElementCount(input);
  block.nnz = input.Take<uint32_t>() & 0x1FFFF;
  block.parameters = input.Take<uint16_t>();
  const Bytes before = TakeBlock(input, size_t{element_count} * ElementBytes(dtype));
  const auto kind_of_base = input.Take<uint8_t>();  // most inputs have a base
  const std::optional<ClassTable> classes = TakeClassTable(input);
  BlockBase base{.classes = classes.has_value() ? &*classes : nullptr, .before = before};
  if (kind_of_base % 16 == 14) base.before = {};
  if (kind_of_base % 16 == 15) base.before = base.before.first(before.size() - 1);
  const Bytes payload(input.rest().begin(), input.rest().end());  // ends at the end of its buffer
  block.payload = payload;

  DecodedBlock decoded;
  const Status status = DecodeBlock(dtype, element_count, block, decoded, base);
  DecodedBlock again;
  again.positions.resize(3, 7);
  again.values.resize(5, 9);
  DWS_CHECK(DecodeBlock(dtype, element_count, block, again, base).code() == status.code());
  if (!status.ok()) return;
  DWS_CHECK(decoded.kind == again.kind && decoded.positions == again.positions &&
            decoded.values == again.values && decoded.dense == again.dense);
  CheckPossible(dtype, element_count, block, decoded);
  Bytes after = before;
  ApplyBlock(dtype, decoded, after);
  if (decoded.kind == Kind::kSteps) CheckSteps(dtype, before, decoded, after);
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
