// Arbitrary bytes as the outbox of a rank, changed again while pieces of it are added. A header
// that is accepted fits the memory. Pieces that are taken are inside it, in order, each slot once,
// and stay what they are whatever is written over their slots. Accumulators add exactly those that
// fit their unit.
#include <fcntl.h>

#include <algorithm>

#include "common/base/check.h"
#include "common/memory/gradients/accumulators.h"
#include "common/memory/gradients/outbox.h"
#include "tests/fuzz/fuzz_input.h"

namespace dws::fuzz {
namespace {

constexpr OutboxGeometry kGeometry = {.slot_count = 4, .data_bytes = 1024};
constexpr uint32_t kOwners = 2;
constexpr uint64_t kElements[] = {0, 3, 64};  // of each unit
constexpr size_t kSlotsBytes = kGeometry.slot_count * kOutboxSlotBytes;

// Memory that every run uses again, and the sums.
struct Fixture {
  Fixture()
      : region(std::move(CreateHostRegion("outbox", kGeometry.SizeBytes()).value())),
        sums(Accumulators::Create(
                 {{"none", kElements[0]}, {"odd", kElements[1]}, {"even", kElements[2]}},
                 {.exact = true, .bytes_max = 1 << 20})
                 .value()) {}

  CreatedRegion region;
  Accumulators sums;
  ThreadPool pool{0};
};

// Sets what mutation never gets right: in slots, the state, the type of elements and the zeros.
void Repair(std::byte* slots) {
  for (size_t at = 0; at < kSlotsBytes; at += kOutboxSlotBytes) {
    std::byte* const slot = slots + at;
    StoreLe<uint32_t>(slot, LoadLe<uint32_t>(slot) & 1);
    StoreLe<uint32_t>(slot + 4, LoadLe<uint32_t>(slot + 4) % std::size(kElements));
    StoreLe<uint32_t>(slot + 8, LoadLe<uint32_t>(slot + 8) % kOwners);
    const bool bf16 = (LoadLe<uint32_t>(slot + 12) & 1) == 0;
    StoreLe(slot + 12, static_cast<uint32_t>(bf16 ? DType::kBF16 : DType::kF32));
    StoreLe<uint32_t>(slot + 36, 0);
    StoreLe<uint64_t>(slot + 56, 0);
  }
}

void Overwrite(std::byte* to, ByteSpan bytes) { std::copy(bytes.begin(), bytes.end(), to); }

void CheckPieces(const OutboxReader& reader, ByteSpan mapped,
                 const std::vector<OutboxPiece>& pieces, std::vector<bool>& taken) {
  for (size_t i = 0; i < pieces.size(); ++i) {
    const OutboxPiece& piece = pieces[i];
    DWS_CHECK(i == 0 || pieces[i - 1].number <= piece.number);
    DWS_CHECK(piece.slot < taken.size() && !taken[piece.slot]);
    taken[piece.slot] = true;
    DWS_CHECK(piece.unit < std::size(kElements) && piece.owner < kOwners);
    const ByteSpan bytes = reader.Bytes(piece);
    DWS_CHECK(bytes.size() == piece.size_bytes);
    DWS_CHECK(bytes.size() <= mapped.size() - kGeometry.DataOffset());
  }
}

void Run(FuzzInput input) {
  static Fixture fixture;
  std::byte* const memory = fixture.region.region.mutable_bytes().data();
  std::byte* const slots = memory + 64;
  const auto flags = input.Take<uint8_t>();
  std::fill_n(memory, kGeometry.DataOffset(), std::byte{0});
  WriteOutboxHeader(kGeometry, memory);
  if ((flags & 1) != 0) Overwrite(memory, input.TakeBytes(64));
  Overwrite(slots, input.TakeBytes(kSlotsBytes));
  if ((flags & 2) != 0) Repair(slots);

  Result<HostRegion> mapped =
      HostRegion::Map(UniqueFd(::fcntl(fixture.region.fd.get(), F_DUPFD_CLOEXEC, 0)),
                      kGeometry.SizeBytes(), Access::kReadWrite);
  DWS_CHECK(mapped.ok());
  const ByteSpan mapped_bytes = mapped->bytes();
  Result<OutboxReader> reader = OutboxReader::Open(
      *std::move(mapped), UniqueFd(), {.unit_count = std::size(kElements), .owner_count = kOwners});
  if (!reader.ok()) return;
  DWS_CHECK(LoadLe<uint64_t>(memory + 16) == kGeometry.data_bytes);

  std::vector<bool> taken(kGeometry.slot_count);
  std::vector<OutboxPiece> pieces;
  while (true) {
    const Result<std::vector<OutboxPiece>> more = reader->Take();
    if (more.ok()) {
      CheckPieces(*reader, mapped_bytes, *more, taken);
      pieces.insert(pieces.end(), more->begin(), more->end());
    }
    if (input.empty()) break;
    Overwrite(slots, input.TakeBytes(kSlotsBytes));  // and the bytes of the pieces stay in reach
    if ((flags & 4) != 0) Repair(slots);
  }
  for (const OutboxPiece& piece : pieces) {
    const Status added = fixture.sums.Add(
        {.unit = piece.unit, .blocks = {}, .dtype = piece.dtype, .bytes = reader->Bytes(piece)},
        fixture.pool);
    DWS_CHECK(added.ok() ==
              (piece.size_bytes == kElements[piece.unit] * ElementBytes(piece.dtype)));
    reader->Free(piece);
  }
  DWS_CHECK(fixture.sums.Seal(fixture.pool).ok());
  fixture.sums.LetGo();
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
