// Reads what a FabricLoan lends.
#pragma once

#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/transport/fabric/fabric_api.h"
#include "common/transport/fabric/remote_memory.h"

namespace dws {

class FabricEndpoint;

class FabricReader final : public RemoteMemory {
 public:
  struct Options {
    // The memory that pieces are read to. It is registered once and must outlive the reader. Not
    // empty; the first one is the large one, and an adapter near it is chosen.
    std::vector<MutableByteSpan> local;
    Duration timeout;        // ends the reader if nothing arrives for so long
    size_t pieces_max = 16;  // under way at once
  };
  // INVALID_ARGUMENT: `remote` cannot be a region. Other errors as FabricEndpoint.
  static Result<std::unique_ptr<FabricReader>> Connect(FabricApiPtr api, const RemoteRegion& remote,
                                                       const Options& options);
  ~FabricReader() override;

  const std::string& name() const override { return name_; }
  size_t pieces_max() const override;
  Status Start(const Piece& piece) override;
  Result<uint64_t> Wait() override;

 private:
  struct Local;
  struct UnderWay;

  FabricReader(const RemoteRegion& remote, const Options& options);
  // Takes arrived pieces into arrived_; waits up to `timeout_ms` for one.
  Status Take(int timeout_ms);
  // Ends the reader: when it returns, nothing arrives any longer. Returns `error`.
  Status Fail(const Status& error);

  const RemoteRegion remote_;
  const Duration timeout_;
  std::string name_;
  std::unique_ptr<FabricEndpoint> endpoint_;  // null after an error
  std::vector<Local> local_;                  // released before the endpoint
  uint64_t peer_ = 0;                         // fi_addr_t
  std::vector<UnderWay> pieces_;
  std::vector<size_t> free_;      // of pieces_
  std::deque<uint64_t> arrived_;  // tags
  Status failed_;
};

}  // namespace dws
