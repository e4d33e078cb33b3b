// Memory of another process that can be read from here, piece by piece: what a transfer of full
// tensors needs of a fabric.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/transport/fabric/provider.h"

namespace dws {

// How to reach memory that a process lends (FabricLoan). A plain value. Secret: the key is all that
// protects the memory.
struct RemoteRegion {
  FabricProvider provider = FabricProvider::kTcp;
  uint32_t address_format = 0;     // libfabric's number
  std::vector<std::byte> address;  // of the endpoint
  uint64_t base = 0;               // what the fabric calls the first byte
  uint64_t size = 0;               // in bytes
  uint64_t key = 0;

  friend bool operator==(const RemoteRegion&, const RemoteRegion&) = default;
};

// A region, and how long it is lent from now. Asking again extends the loan.
struct RemoteLoan {
  RemoteRegion region;
  Duration lease;
};

// The most bytes of an endpoint's address.
inline constexpr size_t kFabricAddressBytesMax = 256;

// Lifecycle: for one transfer. It ends with the first error: after that nothing arrives. Threads:
// one at a time.
class RemoteMemory {
 public:
  // One read. `to` is registered memory, untouched by others until Wait has named the `tag`.
  struct Piece {
    uint64_t offset = 0;  // in the remote memory
    MutableByteSpan to;
    uint64_t tag = 0;
  };

  virtual ~RemoteMemory() = default;

  // For messages: provider and address.
  virtual const std::string& name() const = 0;
  // How many pieces may be under way at once.
  virtual size_t pieces_max() const = 0;
  // Begins to read. UNAVAILABLE: the other side cannot be reached. DEADLINE_EXCEEDED: it accepts no
  // more work.
  virtual Status Start(const Piece& piece) = 0;
  // Returns the tag of a piece that the provider reports as arrived. Only the bytes prove it.
  // UNAVAILABLE: the other side is gone, or no longer lends this memory. DEADLINE_EXCEEDED: nothing
  // arrived for long.
  virtual Result<uint64_t> Wait() = 0;
};

}  // namespace dws
