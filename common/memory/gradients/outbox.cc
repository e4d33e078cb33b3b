#include "common/memory/gradients/outbox.h"

#include <algorithm>
#include <utility>

#include "common/base/check.h"

namespace dws {

OutboxReader::OutboxReader(OutboxMemory memory, UniqueFd wake, OutboxBounds bounds)
    : memory_(std::move(memory)),
      wake_(std::move(wake)),
      bounds_(bounds),
      taken_(memory_.geometry().slot_count) {}

Result<OutboxReader> OutboxReader::Open(HostRegion region, UniqueFd wake, OutboxBounds bounds) {
  if (region.access() != Access::kReadWrite) {
    return InvalidArgumentError("outbox: expected a region that may be written");
  }
  DWS_ASSIGN_OR_RETURN(OutboxMemory memory, OutboxMemory::Open(std::move(region)));
  OutboxReader reader(std::move(memory), std::move(wake), bounds);
  for (uint32_t slot = 0; slot < reader.geometry().slot_count; ++slot) {
    if (reader.memory_.State(slot) != static_cast<uint32_t>(OutboxSlotState::kOffered)) continue;
    reader.memory_.SetState(slot, OutboxSlotState::kFree);
  }
  reader.wake_.Notify();
  return reader;
}

// Marks nothing before all filled slots were read: an error leaves no piece half taken.
Result<std::vector<OutboxPiece>> OutboxReader::Take() {
  std::vector<OutboxPiece> pieces;
  for (uint32_t slot = 0; slot < taken_.size(); ++slot) {
    if (taken_[slot]) continue;
    const uint32_t state = memory_.State(slot);
    if (state == static_cast<uint32_t>(OutboxSlotState::kFree)) continue;
    if (state != static_cast<uint32_t>(OutboxSlotState::kFilled)) {
      return InvalidArgumentError("outbox slot {}: expected it free or filled, found state {}",
                                  slot, state);
    }
    DWS_ASSIGN_OR_RETURN(const OutboxPiece piece, memory_.Read(slot));
    if (piece.unit >= bounds_.unit_count || piece.owner >= bounds_.owner_count) {
      return InvalidArgumentError(
          "outbox slot {}: expected a unit below {} and an owner below {}, found unit {} for owner "
          "{}",
          slot, bounds_.unit_count, bounds_.owner_count, piece.unit, piece.owner);
    }
    pieces.push_back(piece);
  }
  for (const OutboxPiece& piece : pieces) {
    taken_[piece.slot] = true;
    memory_.SetState(piece.slot, OutboxSlotState::kOffered);
  }
  std::stable_sort(pieces.begin(), pieces.end(),
                   [](const OutboxPiece& a, const OutboxPiece& b) { return a.number < b.number; });
  return pieces;
}

ByteSpan OutboxReader::Bytes(const OutboxPiece& piece) const {
  const Result<ByteSpan> bytes = memory_.Bytes(piece.offset_bytes, piece.size_bytes);
  DWS_CHECK(bytes.ok());
  return *bytes;
}

void OutboxReader::Free(const OutboxPiece& piece) {
  DWS_CHECK(piece.slot < taken_.size() && taken_[piece.slot]);
  taken_[piece.slot] = false;
  memory_.SetState(piece.slot, OutboxSlotState::kFree);
  wake_.Notify();
}

OutboxWriter::OutboxWriter(OutboxMemory memory, MutableByteSpan data, UniqueFd wake)
    : memory_(std::move(memory)), data_(data), wake_(std::move(wake)) {}

Result<OutboxWriter> OutboxWriter::Create(const OutboxGeometry& geometry, OutboxHandles& handles) {
  DWS_RETURN_IF_ERROR(Validate(geometry));
  DWS_ASSIGN_OR_RETURN(auto ends, OutboxWake::MakePair());
  DWS_ASSIGN_OR_RETURN(CreatedRegion made, CreateHostRegion("dws-outbox", geometry.SizeBytes()));
  const MutableByteSpan bytes = made.region.mutable_bytes();
  WriteOutboxHeader(geometry, bytes.data());
  DWS_ASSIGN_OR_RETURN(OutboxMemory memory, OutboxMemory::Open(std::move(made.region)));
  handles = {.region = std::move(made.fd),
             .size_bytes = geometry.SizeBytes(),
             .wake = std::move(ends.second)};
  return OutboxWriter(std::move(memory), bytes.subspan(geometry.DataOffset()),
                      std::move(ends.first));
}

bool OutboxWriter::IsFree(uint32_t slot) const {
  return memory_.State(slot) == static_cast<uint32_t>(OutboxSlotState::kFree);
}

void OutboxWriter::Fill(const OutboxPiece& piece) {
  DWS_CHECK(IsFree(piece.slot));
  memory_.Write(piece);
  memory_.SetState(piece.slot, OutboxSlotState::kFilled);
  wake_.Notify();
}

}  // namespace dws
