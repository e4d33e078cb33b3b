// Opened in the order of the members: fabric, domain, address vector, completion queue, endpoint.
#include "common/transport/fabric/fabric_endpoint.h"

#include <rdma/fi_cm.h>
#include <rdma/fi_eq.h>
#include <rdma/fi_errno.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <cstdlib>
#include <cstring>
#include <ctime>
#include <random>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/transport/fabric/nearest_nic.h"

namespace dws {
namespace {

// Between two looks at a queue that cannot be waited for.
constexpr timespec kPollPause{.tv_sec = 0, .tv_nsec = 20'000};

// Requirements that every provider here meets: reads of memory that the other side has registered.
// Writes are not allowed, and memory of a device is not asked for.
EndpointList Hints(const FabricApi& api, const char* provider) {
  EndpointList hints = api.NewInfo();
  hints->caps = FI_MSG | FI_RMA | FI_READ | FI_REMOTE_READ;
  hints->mode = FI_CONTEXT | FI_CONTEXT2;
  hints->ep_attr->type = FI_EP_RDM;
  hints->domain_attr->mr_mode = FI_MR_LOCAL | FI_MR_VIRT_ADDR | FI_MR_ALLOCATED | FI_MR_PROV_KEY;
  hints->domain_attr->threading = FI_THREAD_DOMAIN;
  hints->domain_attr->resource_mgmt = FI_RM_ENABLED;
  hints->fabric_attr->prov_name = ::strdup(provider);  // fi_freeinfo frees it
  return hints;
}

std::string UniqueName() {
  std::random_device random;
  return fmt::format("dws-{:08x}{:08x}", random(), random());
}

// Asks for an endpoint that can reach `peer`. The address is padded with zeros: libfabric reads as
// many bytes as its format has.
void AimAt(const RemoteRegion& peer, fi_info& hints) {
  DWS_CHECK(peer.address.size() <= kFabricAddressBytesMax);
  hints.addr_format = peer.address_format;
  hints.dest_addr = ::calloc(1, kFabricAddressBytesMax);  // fi_freeinfo frees it
  DWS_CHECK(hints.dest_addr != nullptr);
  hints.dest_addrlen = peer.address.size();
  std::memcpy(hints.dest_addr, peer.address.data(), peer.address.size());
}

Nic Describe(const fi_info& info) {
  Nic nic{.domain = info.domain_attr->name == nullptr ? "" : info.domain_attr->name};
  if (info.nic == nullptr) return nic;
  if (const fi_bus_attr* bus = info.nic->bus_attr; bus != nullptr && bus->bus_type == FI_BUS_PCI) {
    const fi_pci_attr& pci = bus->attr.pci;
    nic.numa_node = NumaNodeOfPciDevice(fmt::format("{:04x}:{:02x}:{:02x}.{:x}", pci.domain_id,
                                                    pci.bus_id, pci.device_id, pci.function_id));
  }
  if (const fi_link_attr* link = info.nic->link_attr; link != nullptr) {
    nic.up = link->state != FI_LINK_DOWN;
    nic.bits_per_second = link->speed;
  }
  return nic;
}

std::string LockLimit() {
  rlimit limit = {};
  if (::getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) {
    return "RLIMIT_MEMLOCK does not limit it";
  }
  return fmt::format(
      "RLIMIT_MEMLOCK lets this process pin {} bytes: set LimitMEMLOCK=infinity in its systemd "
      "unit, or ulimit -l unlimited",
      limit.rlim_cur);
}

}  // namespace

Result<std::unique_ptr<FabricEndpoint>> FabricEndpoint::Open(FabricApiPtr api,
                                                             const Options& options) {
  std::unique_ptr<FabricEndpoint> endpoint(new FabricEndpoint(std::move(api)));
  DWS_RETURN_IF_ERROR(endpoint->Find(options));
  DWS_RETURN_IF_ERROR(endpoint->OpenAll());
  return endpoint;
}

Status FabricEndpoint::Look(FabricApiPtr api, const Options& options) {
  return FabricEndpoint(std::move(api)).Find(options);
}

Status FabricEndpoint::Find(const Options& options) {
  // Only these two have addresses of IP.
  const bool by_ip =
      options.provider == FabricProvider::kVerbs || options.provider == FabricProvider::kTcp;
  std::string source = by_ip ? options.source : "";
  name_ = std::string(ToString(options.provider));
  if (!source.empty()) name_ += " " + source;
  // Otherwise it would be named after the process id, which a process in another sandbox may have
  // too.
  if (options.provider == FabricProvider::kShm) source = UniqueName();
  for (const char* const name : LibraryNames(options.provider)) {
    EndpointList hints = Hints(*api_, name);
    // shm names the other process by a string that is of no use before it is inserted.
    if (options.peer != nullptr && options.provider != FabricProvider::kShm) {
      AimAt(*options.peer, *hints);
    }
    DWS_ASSIGN_OR_RETURN(const EndpointList found, api_->Find(*hints, source));
    std::vector<const fi_info*> all;
    std::vector<Nic> nics;
    for (const fi_info* info = found.get(); info != nullptr; info = info->next) {
      // "tcp" may be offered as "tcp;ofi_rxm".
      if (std::string_view(info->fabric_attr->prov_name) != name) continue;
      all.push_back(info);
      nics.push_back(Describe(*info));
    }
    const auto nearest =
        NearestNic(nics, nics.size() > 1 ? NumaNodeOf(options.memory) : std::nullopt);
    if (!nearest.has_value()) continue;
    info_ = api_->Copy(*all[*nearest]);
    name_ += fmt::format(" ({})", nics[*nearest].domain);
    return OkStatus();
  }
  return UnavailableError("libfabric {} has no provider {} here{}{}", api_->version(),
                          ToString(options.provider), source.empty() ? "" : " at ", source);
}

Status FabricEndpoint::OpenAll() {
  fid_fabric* fabric = nullptr;
  if (const int error = api_->OpenFabric(*info_->fabric_attr, &fabric); error != 0) {
    return Error(error, "fi_fabric");
  }
  fabric_.reset(fabric);
  fid_domain* domain = nullptr;
  if (const int error = ::fi_domain(fabric, info_.get(), &domain, nullptr); error != 0) {
    return Error(error, "fi_domain");
  }
  domain_.reset(domain);
  fi_av_attr av_attributes = {};
  av_attributes.type = FI_AV_UNSPEC;
  fid_av* addresses = nullptr;
  if (const int error = ::fi_av_open(domain, &av_attributes, &addresses, nullptr); error != 0) {
    return Error(error, "fi_av_open");
  }
  addresses_.reset(addresses);
  fi_cq_attr cq_attributes = {};
  cq_attributes.format = FI_CQ_FORMAT_CONTEXT;
  // Not FI_WAIT_UNSPEC: with it shm would choose a wait that ignores the timeout.
  cq_attributes.wait_obj = FI_WAIT_FD;
  fid_cq* completions = nullptr;
  int error = ::fi_cq_open(domain, &cq_attributes, &completions, nullptr);
  if (error != 0) {  // some cannot wait
    waits_ = false;
    cq_attributes.wait_obj = FI_WAIT_NONE;
    error = ::fi_cq_open(domain, &cq_attributes, &completions, nullptr);
  }
  if (error != 0) return Error(error, "fi_cq_open");
  completions_.reset(completions);
  fid_ep* endpoint = nullptr;
  if (error = ::fi_endpoint(domain, info_.get(), &endpoint, nullptr); error != 0) {
    return Error(error, "fi_endpoint");
  }
  endpoint_.reset(endpoint);
  if (error = ::fi_ep_bind(endpoint, &addresses->fid, 0); error != 0) {
    return Error(error, "fi_ep_bind to the addresses");
  }
  if (error = ::fi_ep_bind(endpoint, &completions->fid, FI_TRANSMIT | FI_RECV); error != 0) {
    return Error(error, "fi_ep_bind to the completions");
  }
  if (error = ::fi_enable(endpoint); error != 0) return Error(error, "fi_enable");
  return OkStatus();
}

Result<FabricHandle<fid_mr>> FabricEndpoint::Register(ByteSpan memory, uint64_t access,
                                                      uint64_t key) {
  fid_mr* region = nullptr;
  const int error =
      ::fi_mr_reg(domain_.get(), memory.data(), memory.size(), access, 0, key, 0, &region, nullptr);
  if (error == 0) return FabricHandle<fid_mr>(region);
  return ResourceExhaustedError("fabric {}: {} bytes cannot be registered: {}; {}", name_,
                                memory.size(), api_->ErrorText(error), LockLimit());
}

Result<std::vector<std::byte>> FabricEndpoint::Address() {
  std::vector<std::byte> address(kFabricAddressBytesMax);
  size_t size = address.size();
  if (const int error = ::fi_getname(&endpoint_->fid, address.data(), &size); error != 0) {
    return Error(error, "fi_getname");
  }
  DWS_CHECK(size <= address.size());
  address.resize(size);
  return address;
}

Result<fi_addr_t> FabricEndpoint::Insert(const RemoteRegion& peer) {
  // Padded with zeros: the provider reads as many bytes as its addresses have.
  std::array<std::byte, kFabricAddressBytesMax + 1> address = {};
  if (peer.address.empty() || peer.address.size() > kFabricAddressBytesMax) {
    return InvalidArgumentError("fabric {}: an address of {} bytes, expected 1 to {}", name_,
                                peer.address.size(), kFabricAddressBytesMax);
  }
  if (peer.address_format != info_->addr_format) {
    return InvalidArgumentError("fabric {}: an address of format {}, expected {}", name_,
                                peer.address_format, info_->addr_format);
  }
  std::copy(peer.address.begin(), peer.address.end(), address.begin());
  fi_addr_t inserted = FI_ADDR_NOTAVAIL;
  const int count = ::fi_av_insert(addresses_.get(), address.data(), 1, &inserted, 0, nullptr);
  if (count == 1) return inserted;
  return Error(count < 0 ? count : -FI_EADDRNOTAVAIL, "fi_av_insert");
}

ssize_t FabricEndpoint::Await(fi_cq_entry& completion, int timeout_ms) {
  if (waits_) {
    const ssize_t got = ::fi_cq_sread(completions_.get(), &completion, 1, nullptr, timeout_ms);
    if (got != -FI_ENOSYS) return got;
    waits_ = false;
  }
  const ssize_t got = ::fi_cq_read(completions_.get(), &completion, 1);
  if (got == -FI_EAGAIN && timeout_ms > 0) ::nanosleep(&kPollPause, nullptr);
  return got;
}

Status FabricEndpoint::CompletionError(std::string_view what) {
  fi_cq_err_entry entry = {};
  const ssize_t got = ::fi_cq_readerr(completions_.get(), &entry, 0);
  if (got < 0) return Error(got, what);
  return UnavailableError("fabric {}: {}: {} (the provider says {})", name_, what,
                          api_->ErrorText(entry.err), entry.prov_errno);
}

Status FabricEndpoint::Error(int64_t error, std::string_view what) const {
  return UnavailableError("fabric {}: {}: {}", name_, what,
                          api_->ErrorText(static_cast<int>(error)));
}

}  // namespace dws
