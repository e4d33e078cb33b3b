// Full tensors from a snapshot that another host lends, and that changes while it is read.
#pragma once

#include <cstdint>
#include <functional>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/model/weight_version.h"
#include "common/spool/full_assembly.h"
#include "common/transport/fabric/remote_memory.h"
#include "common/transport/same_host/snapshot_memory.h"

namespace dws {

// Buffers for what is not read straight into the assembly's memory. Made before the connection,
// which registers them; each serves one transfer.
class RemoteBuffers {
 public:
  // For at most `pieces_max` pieces at a time.
  RemoteBuffers(FullAssembly& assembly, size_t pieces_max);

  // The memory that a FabricReader has to register, the large span first.
  std::vector<MutableByteSpan> Local();
  // The stamps of a piece's blocks.
  std::span<uint64_t> stamps(size_t piece);
  // Room for the blocks of a piece: in the assembly, or in these buffers if the assembly is on
  // disk.
  MutableByteSpan Room(FullAssembly& assembly, const BlockRange& range, size_t piece);

 private:
  const MutableByteSpan memory_;  // the assembly's
  std::vector<uint64_t> stamps_;
  std::vector<std::byte> bytes_;  // empty if the assembly is in memory
};

// Reads the blocks that `assembly` lacks and that are still as of `version`, which was published.
// Blocks that the trainer has changed since stay missing, and are kept as they are now
// (FullAssembly::KeepNewer). Calls `going_on` now and
// then; an error that it returns ends the read. Errors: those of `remote` and of
// FullAssembly::Take; DATA_LOSS: the provider reports a read that moved nothing. Reads may be under
// way when this returns: end `remote` before using the memory.
Status ReadRemoteSnapshot(RemoteMemory& remote, const SnapshotPlaces& places, WeightVersion version,
                          const std::function<Status()>& going_on, RemoteBuffers& buffers,
                          FullAssembly& assembly);

}  // namespace dws
