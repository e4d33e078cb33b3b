// The part of NCCL that DWS calls. It is declared here and loaded at run time, so every program
// starts on machines without libnccl, and every build compiles and tests all code that uses it.
// Names are NCCL's, in our spelling; a build with a CUDA toolkit compares the declarations with
// <nccl.h> (nccl_api_check.cc). Used by nccl_communicator.h only.
#pragma once

#include <array>
#include <climits>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "common/base/status.h"

namespace dws::nccl {

// All other values are errors like kInternalError.
enum class NcclResult : int {
  kSuccess = 0,
  kUnhandledCudaError = 1,
  kSystemError = 2,
  kInternalError = 3,
  kInvalidArgument = 4,
  kInvalidUsage = 5,
  kRemoteError = 6,
  kInProgress = 7,
};

inline constexpr size_t kUniqueIdBytes = 128;
struct NcclUniqueId {
  std::array<char, kUniqueIdBytes> bytes;
};
using NcclComm = struct NcclOpaqueComm*;

inline constexpr int kNcclUndefined = INT_MIN;
inline constexpr int kNcclUint8 = 1;  // ncclUint8

// ncclConfig_t as of NCCL 2.18. A library reads `size` bytes and treats fields newer than `version`
// as undefined, so newer libraries accept this struct.
struct NcclConfig {
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kNcclUndefined;
  int cga_cluster_size = kNcclUndefined;
  int min_ctas = kNcclUndefined;
  int max_ctas = kNcclUndefined;
  const char* net_name = nullptr;
  int split_share = kNcclUndefined;
};
inline constexpr int kNcclVersionMin = 21800;

// F(member of NcclApi, exported symbol, result, parameters).
#define DWS_NCCL_FUNCTIONS(F)                                                                      \
  F(get_version, ncclGetVersion, NcclResult, (int* version))                                       \
  F(get_unique_id, ncclGetUniqueId, NcclResult, (NcclUniqueId * id))                               \
  F(get_error_string, ncclGetErrorString, const char*, (NcclResult result))                        \
  F(get_last_error, ncclGetLastError, const char*, (NcclComm comm))                                \
  F(init_rank, ncclCommInitRankConfig, NcclResult,                                                 \
    (NcclComm * comm, int size, NcclUniqueId id, int rank, NcclConfig* config))                    \
  F(get_async_error, ncclCommGetAsyncError, NcclResult, (NcclComm comm, NcclResult * async_error)) \
  F(abort, ncclCommAbort, NcclResult, (NcclComm comm))                                             \
  F(broadcast, ncclBroadcast, NcclResult,                                                          \
    (const void* source, void* target, size_t count, int type, int root, NcclComm comm,            \
     void* stream))

// The functions of the loaded library.
struct NcclFunctions {
#define DWS_NCCL_MEMBER(member, symbol, result, parameters) result(*member) parameters = nullptr;
  DWS_NCCL_FUNCTIONS(DWS_NCCL_MEMBER)
#undef DWS_NCCL_MEMBER
};

class NcclApi;
using NcclApiPtr = std::shared_ptr<const NcclApi>;

// Lifecycle: loaded once when the daemon is wired; never unloaded, because it leaves threads
// behind. Threads: safe from any.
class NcclApi {
 public:
  // Loads libnccl.so.2. UNAVAILABLE: there is none, it lacks a function (the message names it), or
  // it is older than kNcclVersionMin; the message says what to install.
  static Result<NcclApiPtr> Load();

  const NcclFunctions& functions() const { return functions_; }
  // 22809 is 2.28.9. All ranks of a communicator must have the same.
  uint32_t version() const { return version_; }

  // OK also for kInProgress. Otherwise "<what>: <NCCL's text> (<its last error>)": UNAVAILABLE if
  // another rank or the network is at fault, INTERNAL for all else. `comm` may be null.
  Status Check(NcclResult result, const char* what, NcclComm comm) const;

 private:
  NcclApi() = default;

  NcclFunctions functions_;
  uint32_t version_ = 0;
};

// "2.28.9"
std::string NcclVersionText(uint32_t version);

}  // namespace dws::nccl
