#include "common/transport/nccl/nccl_api.h"

#include <dlfcn.h>

namespace dws::nccl {
namespace {

constexpr const char* kLibrary = "libnccl.so.2";
constexpr const char* kRemedy =
    "install NCCL 2.18 or newer (package libnccl2), or name its folder in LD_LIBRARY_PATH";

std::string LastLoadError() {
  const char* text = dlerror();
  return text == nullptr ? "unknown" : text;
}

}  // namespace

std::string NcclVersionText(uint32_t version) {
  return fmt::format("{}.{}.{}", version / 10'000, version / 100 % 100, version % 100);
}

Result<NcclApiPtr> NcclApi::Load() {
  // Never closed: see the class.
  void* library = dlopen(kLibrary, RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    return UnavailableError("{} cannot be loaded: {}; {}", kLibrary, LastLoadError(), kRemedy);
  }
  std::shared_ptr<NcclApi> api(new NcclApi);
  const char* missing = nullptr;
#define DWS_NCCL_LOAD(member, symbol, result, parameters)                                   \
  api->functions_.member = reinterpret_cast<result(*) parameters>(dlsym(library, #symbol)); \
  if (api->functions_.member == nullptr) missing = #symbol;
  DWS_NCCL_FUNCTIONS(DWS_NCCL_LOAD)
#undef DWS_NCCL_LOAD
  if (missing != nullptr) {
    return UnavailableError("{} has no function {}; {}", kLibrary, missing, kRemedy);
  }
  int version = 0;
  DWS_RETURN_IF_ERROR(api->Check(api->functions_.get_version(&version), "ncclGetVersion", nullptr));
  if (version < kNcclVersionMin) {
    return UnavailableError("{} is of version {}, expected at least {}; {}", kLibrary,
                            NcclVersionText(static_cast<uint32_t>(version)),
                            NcclVersionText(kNcclVersionMin), kRemedy);
  }
  api->version_ = static_cast<uint32_t>(version);
  return NcclApiPtr(std::move(api));
}

Status NcclApi::Check(NcclResult result, const char* what, NcclComm comm) const {
  if (result == NcclResult::kSuccess || result == NcclResult::kInProgress) return OkStatus();
  const char* last = functions_.get_last_error(comm);
  const std::string text =
      fmt::format("{}: {} ({})", what, functions_.get_error_string(result),
                  last == nullptr || *last == '\0' ? "NCCL gives no details" : last);
  const bool elsewhere = result == NcclResult::kSystemError || result == NcclResult::kRemoteError;
  return elsewhere ? UnavailableError("{}", text) : InternalError("{}", text);
}

}  // namespace dws::nccl
