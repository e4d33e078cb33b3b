// Full tensors from one sender over a fabric, if both sides have one.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <utility>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/weight_version.h"
#include "common/transport/fabric/fabric_reader.h"
#include "common/transport/fabric/remote_memory.h"
#include "receiver_daemon/spool/full_assembly.h"

namespace dws {

// Lifecycle: one for each sender. Threads: safe from any.
class FabricWay {
 public:
  // Asks the sender to lend its snapshot, or to lend it longer.
  using Ask = std::function<Result<RemoteLoan>()>;
  // Connects to what is lent: with libfabric, or as a test says.
  using Connect = std::function<Result<std::unique_ptr<RemoteMemory>>(
      const RemoteRegion&, const FabricReader::Options&)>;

  FabricWay(FabricChoice choice, Connect connect, const Clock& clock)
      : choice_(choice), clock_(clock), connect_(std::move(connect)) {}

  bool on() const { return choice_.on; }

  // As ReadRemoteSnapshot. FAILED_PRECONDITION: this host has no libfabric, or one of the two sides
  // does not want this; stays so. Other errors: `ask`'s and FabricReader's. What came before an error
  // is there. `name` is set to the provider's as soon as it is known.
  Status Read(const Ask& ask, WeightVersion version, FullAssembly& assembly, std::string& name);

 private:
  // Loads libfabric when it is needed first.
  Result<Connect> Connector();

  const FabricChoice choice_;
  const Clock& clock_;
  Mutex mutex_;
  Connect connect_ GUARDED_BY(mutex_);  // none: not loaded yet
};

}  // namespace dws
