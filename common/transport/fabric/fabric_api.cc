#include "common/transport/fabric/fabric_api.h"

#include <dlfcn.h>
#include <rdma/fi_errno.h>

#include <cstdlib>
#include <utility>

#include "common/base/check.h"

#if defined(__SANITIZE_ADDRESS__)
// Version 1.17 leaks some hundred bytes for each endpoint. Our own code must not leak anything.
extern "C" const char* __lsan_default_suppressions();
extern "C" const char* __lsan_default_suppressions() { return "leak:libfabric.so.1\n"; }
#endif

namespace dws {
namespace {

constexpr const char* kRemedy =
    "install libfabric 1.11 or newer (package libfabric1), or name its folder in LD_LIBRARY_PATH";
// The version of the interface, not of the library: everything that is used here is at least that
// old.
constexpr uint32_t kInterface = FI_VERSION(1, 11);

std::string LastLoadError() {
  const char* text = ::dlerror();
  return text == nullptr ? "unknown" : text;
}

// The symbol of one version; null, and `missing` named, if there is none.
template <typename Function>
void FindSymbol(void* library, const char* name, const char* version, Function& function,
                std::string& missing) {
  function = reinterpret_cast<Function>(::dlvsym(library, name, version));
  if (function == nullptr) missing = fmt::format("{}@{}", name, version);
}

}  // namespace

void EndpointListRelease::operator()(fi_info* info) const { api->freeinfo_(info); }

Result<FabricApiPtr> FabricApi::Load(const char* name) {
  // Never closed: see the class.
  void* const library = ::dlopen(name, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return UnavailableError("{} cannot be loaded: {}; {}", name, LastLoadError(), kRemedy);
  }
  std::shared_ptr<FabricApi> api(new FabricApi);
  std::string missing;
  FindSymbol(library, "fi_getinfo", "FABRIC_1.3", api->getinfo_, missing);
  FindSymbol(library, "fi_freeinfo", "FABRIC_1.3", api->freeinfo_, missing);
  FindSymbol(library, "fi_dupinfo", "FABRIC_1.3", api->dupinfo_, missing);
  FindSymbol(library, "fi_fabric", "FABRIC_1.1", api->fabric_, missing);
  FindSymbol(library, "fi_strerror", "FABRIC_1.0", api->strerror_, missing);
  FindSymbol(library, "fi_version", "FABRIC_1.0", api->version_, missing);
  if (!missing.empty()) {
    return UnavailableError("{} has no function {}; {}", name, missing, kRemedy);
  }
  if (FI_VERSION_LT(api->version_(), kInterface)) {
    return UnavailableError("{} is of version {}; {}", name, api->version(), kRemedy);
  }
  return FabricApiPtr(std::move(api));
}

EndpointList FabricApi::NewInfo() const {
  fi_info* const info = dupinfo_(nullptr);
  DWS_CHECK(info != nullptr);  // out of memory
  return {info, {shared_from_this()}};
}

EndpointList FabricApi::Copy(const fi_info& info) const {
  fi_info* const copy = dupinfo_(&info);
  DWS_CHECK(copy != nullptr);
  return {copy, {shared_from_this()}};
}

Result<EndpointList> FabricApi::Find(const fi_info& hints, const std::string& source) const {
  fi_info* found = nullptr;
  const char* const node = source.empty() ? nullptr : source.c_str();
  const int error =
      getinfo_(kInterface, node, nullptr, node == nullptr ? 0 : FI_SOURCE, &hints, &found);
  if (error == -FI_ENODATA) return EndpointList(nullptr, {shared_from_this()});
  if (error != 0) return UnavailableError("fi_getinfo: {}", ErrorText(error));
  return EndpointList(found, {shared_from_this()});
}

int FabricApi::OpenFabric(fi_fabric_attr& attributes, fid_fabric** fabric) const {
  return fabric_(&attributes, fabric, nullptr);
}

std::string FabricApi::ErrorText(int error) const { return strerror_(std::abs(error)); }

std::string FabricApi::version() const {
  return fmt::format("{}.{}", FI_MAJOR(version_()), FI_MINOR(version_()));
}

}  // namespace dws
