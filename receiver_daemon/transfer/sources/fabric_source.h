// Full tensors from a sender's memory by reads of a network adapter, if both sides have one.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <string>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/sources/source.h"
#include "common/transport/fabric/fabric_reader.h"
#include "common/transport/fabric/remote_memory.h"
#include "receiver_daemon/transfer/grpc/sync_links.h"

namespace dws {

class FabricSource final : public Source {
 public:
  // Connects to memory that is lent: with libfabric, or as a test says.
  using Connect = std::function<Result<std::unique_ptr<RemoteMemory>>(
      const RemoteRegion&, const FabricReader::Options&)>;

  // `links` and `clock` outlive it. Without `connect` it uses libfabric.
  FabricSource(SyncLinks& links, FabricChoice choice, Connect connect, const Clock& clock)
      : links_(links), choice_(choice), clock_(clock), connect_(std::move(connect)) {}

  static constexpr std::string_view kName = "fabric";
  std::string_view name() const override { return kName; }
  bool brings(Content content) const override { return content == Content::kFull; }
  bool reads_memory() const override { return true; }
  // Additional errors: FAILED_PRECONDITION, which stays so: this host has no libfabric, or one of
  // the two sides does not want this. Those of the call that asks the sender to lend, of
  // FabricReader and of ReadRemoteSnapshot.
  Status ReadFull(const Piece& piece, FullAssembly& assembly) override;
  // The provider, once it is known.
  std::string detail(SenderIndex sender) const override;

 private:
  // Loads libfabric when it is first needed.
  Result<Connect> Connector();

  SyncLinks& links_;
  const FabricChoice choice_;
  const Clock& clock_;
  mutable Mutex mutex_;
  Connect connect_ GUARDED_BY(mutex_);  // none: not loaded yet
  std::map<SenderIndex, std::string> providers_ GUARDED_BY(mutex_);
};

}  // namespace dws
