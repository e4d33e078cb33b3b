// One endpoint of libfabric with everything that it needs: the common part of FabricLoan and
// FabricReader.
#pragma once

#include <rdma/fabric.h>
#include <rdma/fi_domain.h>
#include <rdma/fi_endpoint.h>

#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/status.h"
#include "common/transport/fabric/fabric_api.h"
#include "common/transport/fabric/remote_memory.h"

namespace dws {

struct FabricClose {
  template <typename Object>
  void operator()(Object* object) const {
    (void)::fi_close(&object->fid);
  }
};
template <typename Object>
using FabricHandle = std::unique_ptr<Object, FabricClose>;

// Lifecycle: the destructor closes it; after that the other side reaches nothing and nothing
// arrives here. Registered memory must be released before. Threads: one at a time.
class FabricEndpoint {
 public:
  struct Options {
    FabricProvider provider = FabricProvider::kTcp;
    std::string source = {};             // numeric address of this host; empty: any
    const RemoteRegion* peer = nullptr;  // that it will talk to, if known
    ByteSpan memory = {};                // that is to be near: of several adapters
  };
  // UNAVAILABLE: this host has no such adapter, has it not at that address, or cannot open it.
  static Result<std::unique_ptr<FabricEndpoint>> Open(FabricApiPtr api, const Options& options);
  // Checks that Open could find what it needs; opens nothing.
  static Status Look(FabricApiPtr api, const Options& options);
  FabricEndpoint(const FabricEndpoint&) = delete;
  FabricEndpoint& operator=(const FabricEndpoint&) = delete;

  const fi_info& info() const { return *info_; }
  fid_ep* endpoint() { return endpoint_.get(); }
  bool has_mode(uint64_t mr_mode) const {
    return (static_cast<uint64_t>(info_->domain_attr->mr_mode) & mr_mode) != 0;
  }
  // "tcp 127.0.0.1 (lo)", for messages.
  const std::string& name() const { return name_; }

  // Registers memory for `access` (FI_READ, FI_REMOTE_READ). The provider may choose another key
  // than `key`. RESOURCE_EXHAUSTED: the memory cannot be pinned; the message says what to do.
  Result<FabricHandle<fid_mr>> Register(ByteSpan memory, uint64_t access, uint64_t key);
  // Returns the address of this endpoint, in the form that the other side needs.
  Result<std::vector<std::byte>> Address();
  // INVALID_ARGUMENT: it is no address of this provider.
  Result<fi_addr_t> Insert(const RemoteRegion& peer);

  // Makes progress, waits up to `timeout_ms` for one completion, and returns what fi_cq_read would.
  // It waits for less time, or not at all, if the provider cannot wait.
  ssize_t Await(fi_cq_entry& completion, int timeout_ms);
  // After Await returned -FI_EAVAIL.
  Status CompletionError(std::string_view what);
  // UNAVAILABLE, with the provider and libfabric's text.
  Status Error(int64_t error, std::string_view what) const;

 private:
  explicit FabricEndpoint(FabricApiPtr api) : api_(std::move(api)) {}
  Status Find(const Options& options);
  Status OpenAll();

  const FabricApiPtr api_;
  std::string name_;
  EndpointList info_;
  FabricHandle<fid_fabric> fabric_;
  FabricHandle<fid_domain> domain_;
  FabricHandle<fid_av> addresses_;
  FabricHandle<fid_cq> completions_;
  bool waits_ = true;  // completions_ can be waited for
  FabricHandle<fid_ep> endpoint_;
};

}  // namespace dws
