// Both ends of a rank's outbox (OUTBOX.md): the rank fills slots, and its sender takes pieces from
// them and frees them when their owners have them. The Python package has a writer of its own
// (dws.on_demand.outbox); the one here is for programs in C++, such as benchmarks and tests.
#pragma once

#include <cstdint>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/gradients/outbox_layout.h"
#include "common/memory/gradients/outbox_wake.h"

namespace dws {

// What the rank registered: its pieces name nothing else.
struct OutboxBounds {
  uint32_t unit_count = 0;
  uint32_t owner_count = 0;
};

// The sender's end. Movable. Threads: one at a time, but the bytes of pieces that were taken and
// not freed may be read from any.
class OutboxReader {
 public:
  // `region` may be written. Frees what another sender had taken. INVALID_ARGUMENT: it is no
  // outbox.
  static Result<OutboxReader> Open(HostRegion region, UniqueFd wake, OutboxBounds bounds);

  // Takes the pieces that were filled since, ascending by number; at most one a slot. Never waits.
  // INVALID_ARGUMENT: a slot does not say what a slot can say, or has a state that only the sender
  // writes; the message names it. Then no piece was taken: give the rank up.
  Result<std::vector<OutboxPiece>> Take();

  const OutboxGeometry& geometry() const { return memory_.geometry(); }
  // The bytes of a piece that was taken; the rank may change them at any time.
  ByteSpan Bytes(const OutboxPiece& piece) const;

  // The piece's slot and bytes are the rank's again. It was taken and not freed since (CHECK).
  void Free(const OutboxPiece& piece);

  // Waits until the rank may have filled a slot, but not longer than `timeout`. False: the time has
  // passed. UNAVAILABLE: the rank is gone.
  Result<bool> Wait(Duration timeout) const { return wake_.Wait(timeout); }

 private:
  OutboxReader(OutboxMemory memory, UniqueFd wake, OutboxBounds bounds);

  OutboxMemory memory_;
  OutboxWake wake_;
  OutboxBounds bounds_;
  std::vector<bool> taken_;  // by slot; the states in shared memory prove nothing
};

// What a rank hands to its sender.
struct OutboxHandles {
  UniqueFd region;
  uint64_t size_bytes = 0;
  UniqueFd wake;
};

// The rank's end. Movable. Threads: one at a time.
class OutboxWriter {
 public:
  // Makes an outbox with free slots; puts what the sender needs into `handles`. INVALID_ARGUMENT:
  // see Validate. RESOURCE_EXHAUSTED: no memory or descriptors are left.
  static Result<OutboxWriter> Create(const OutboxGeometry& geometry, OutboxHandles& handles);

  // The memory for gradients. What a slot describes is written only while the slot is free.
  MutableByteSpan data() const { return data_; }
  bool IsFree(uint32_t slot) const;
  // Fills the piece's slot, which is free (CHECK), and wakes the sender.
  void Fill(const OutboxPiece& piece);
  // Waits until the sender may have freed a slot, but not longer than `timeout`. False: the time
  // has passed. UNAVAILABLE: the sender is gone.
  Result<bool> Wait(Duration timeout) const { return wake_.Wait(timeout); }

 private:
  OutboxWriter(OutboxMemory memory, MutableByteSpan data, UniqueFd wake);

  OutboxMemory memory_;
  MutableByteSpan data_;
  OutboxWake wake_;
};

}  // namespace dws
