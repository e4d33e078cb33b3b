// Reads full tensors from memory that a sender lends over a fabric.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/weight_version.h"
#include "common/spool/full_assembly.h"
#include "common/transport/fabric/fabric_reader.h"
#include "common/transport/fabric/remote_memory.h"

namespace dws {

// Threads: safe from any.
class LentMemory {
 public:
  // Asks the sender to lend its snapshot, or to lend it longer.
  using Ask = std::function<Result<RemoteLoan>()>;
  // Connects to memory that is lent: with libfabric, or as a test says.
  using Connect = std::function<Result<std::unique_ptr<RemoteMemory>>(
      const RemoteRegion&, const FabricReader::Options&)>;

  LentMemory(FabricChoice choice, Connect connect, const Clock& clock)
      : choice_(choice), clock_(clock), connect_(std::move(connect)) {}

  // Fills what is missing in `assembly`, like ReadRemoteSnapshot. FAILED_PRECONDITION: this host
  // has no libfabric, or one of the two sides does not want this; stays so. Other errors: those of
  // `ask` and FabricReader. What came before an error is there. `provider` is set as soon as it is
  // known.
  Status Read(const Ask& ask, WeightVersion version, FullAssembly& assembly, std::string& provider);

 private:
  // Loads libfabric when it is needed first.
  Result<Connect> Connector();

  const FabricChoice choice_;
  const Clock& clock_;
  Mutex mutex_;
  Connect connect_ GUARDED_BY(mutex_);  // none: not loaded yet
};

}  // namespace dws
