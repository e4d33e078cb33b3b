// Memory that processes of other hosts may read over a fabric, as long as this object exists. The
// provider does not authenticate readers: everybody who knows the address and the key can read, and
// nobody can write.
#pragma once

#include <atomic>
#include <memory>
#include <string>
#include <thread>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/transport/fabric/fabric_api.h"
#include "common/transport/fabric/fabric_endpoint.h"
#include "common/transport/fabric/remote_memory.h"

namespace dws {

// One endpoint for one memory, so that closing it ends every transfer before the memory is freed,
// including answers that a slow reader has not taken yet. Lifecycle: the destructor ends the loan;
// readers then see an error. Threads: safe from any; a thread of its own makes the progress without
// which most providers answer no reads.
class FabricLoan {
 public:
  struct Options {
    FabricProvider provider = FabricProvider::kTcp;
    std::string source = {};  // numeric address to bind; empty: any
  };
  // `keeper` owns `memory`. Errors: FabricEndpoint's.
  static Result<std::unique_ptr<FabricLoan>> Create(FabricApiPtr api, const Options& options,
                                                    ByteSpan memory,
                                                    std::shared_ptr<const void> keeper);
  ~FabricLoan();
  FabricLoan(const FabricLoan&) = delete;
  FabricLoan& operator=(const FabricLoan&) = delete;

  const RemoteRegion& region() const { return region_; }
  // "tcp 127.0.0.1 (lo)"
  const std::string& name() const { return endpoint_->name(); }

 private:
  FabricLoan(std::shared_ptr<const void> keeper, std::unique_ptr<FabricEndpoint> endpoint)
      : keeper_(std::move(keeper)), endpoint_(std::move(endpoint)) {}
  void Progress();

  const std::shared_ptr<const void> keeper_;
  const std::unique_ptr<FabricEndpoint> endpoint_;
  FabricHandle<fid_mr> memory_;
  RemoteRegion region_;
  std::atomic<bool> stopping_{false};
  std::thread progress_;
};

}  // namespace dws
