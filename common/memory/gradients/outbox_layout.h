// The bytes of an outbox (OUTBOX.md), and its memory for those who only read gradients in it: the
// senders of other ranks on the host. The rank's process may write anything there at any time: each
// value is read once and checked before use.
#pragma once

#include <cstdint>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/memory/host/host_region.h"
#include "common/model/tensor_spec.h"

namespace dws {

inline constexpr uint32_t kOutboxSlotsMax = 65'536;
inline constexpr uint64_t kOutboxSlotBytes = 64;

enum class OutboxSlotState : uint32_t { kFree = 0, kFilled = 1, kOffered = 2 };

struct OutboxGeometry {
  uint32_t slot_count = 0;
  uint64_t data_bytes = 0;

  uint64_t DataOffset() const;
  // The size of the region.
  uint64_t SizeBytes() const { return DataOffset() + data_bytes; }
};

// INVALID_ARGUMENT: no slots or no data, or more than kOutboxSlotsMax or limits::kRegionBytesMax.
Status Validate(const OutboxGeometry& geometry);

// Writes the header of an outbox.
void WriteOutboxHeader(const OutboxGeometry& geometry, std::byte* header);

// What a slot says: the gradients of one unit for one owner.
struct OutboxPiece {
  uint32_t slot = 0;
  uint32_t unit = 0;
  uint32_t owner = 0;
  DType dtype = DType::kBF16;
  uint64_t minibatch = 0;
  uint64_t term = 0;     // of the leader that opened the attempt
  uint32_t attempt = 0;  // of the term
  uint64_t number = 0;
  uint64_t offset_bytes = 0;  // in the data
  uint64_t size_bytes = 0;

  friend bool operator==(const OutboxPiece&, const OutboxPiece&) = default;
};

// A mapped outbox. Movable. Threads: safe from any, since the memory is that of another process.
class OutboxMemory {
 public:
  // Takes the mapped region of an outbox. INVALID_ARGUMENT: its header is not one, or tells of
  // another size than the region's.
  static Result<OutboxMemory> Open(HostRegion region);

  const OutboxGeometry& geometry() const { return geometry_; }

  // The bytes of a piece, valid while this object lives. They may change at any time.
  // INVALID_ARGUMENT: they are not all in the data.
  Result<ByteSpan> Bytes(uint64_t offset_bytes, uint64_t size_bytes) const;

  // A slot's state. The slot exists (CHECK). What was written before the state is visible.
  uint32_t State(uint32_t slot) const;
  // Only if the region may be written.
  void SetState(uint32_t slot, OutboxSlotState state) const;
  // Reads a slot once, its state aside. INVALID_ARGUMENT: it names an element type other than BF16
  // and F32, bytes that are not whole elements at a multiple of their size in the data, or has
  // something else than zeros where there are zeros.
  Result<OutboxPiece> Read(uint32_t slot) const;
  // Writes a slot, its state aside. Only if the region may be written.
  void Write(const OutboxPiece& piece) const;

 private:
  OutboxMemory() = default;

  const std::byte* Slot(uint32_t slot) const;
  std::byte* MutableSlot(uint32_t slot) const;

  HostRegion region_;
  OutboxGeometry geometry_;
};

}  // namespace dws
