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

// Where reads go beside the assembly's own memory. Made before the connection, which registers it;
// one for one transfer.
class RemoteBuffers {
 public:
  // For at most so many pieces at a time.
  RemoteBuffers(FullAssembly& assembly, size_t pieces_max);

  // What a FabricReader has to register, the large one first.
  std::vector<MutableByteSpan> Local();
  // Of one piece: its blocks' stamps.
  std::span<uint64_t> stamps(size_t piece);
  // Its blocks: in the assembly, or here if that is on disk.
  MutableByteSpan Room(FullAssembly& assembly, const BlockRange& range, size_t piece);

 private:
  const MutableByteSpan memory_;  // the assembly's
  std::vector<uint64_t> stamps_;
  std::vector<std::byte> bytes_;  // empty if the assembly is in memory
};

// Reads what is missing in `assembly` and still is as of `version`, which was published; what the
// trainer has changed since, or is changing, stays missing. `going_on` is asked now and then, and
// ends it with its error. Errors: `remote`'s, FullAssembly::Take's; DATA_LOSS: the provider says
// that it has read, and has not. Reads may be under way when it returns: end `remote` before the
// memory is used.
Status ReadRemoteSnapshot(RemoteMemory& remote, const SnapshotPlaces& places, WeightVersion version,
                          const std::function<Status()>& going_on, RemoteBuffers& buffers,
                          FullAssembly& assembly);

}  // namespace dws
