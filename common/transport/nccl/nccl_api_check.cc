// Compares our declarations of NCCL with its header. It is compiled only with a CUDA toolkit that
// has NCCL; there is nothing to run.
#include <nccl.h>

#include <cstddef>
#include <type_traits>

#include "common/transport/nccl/nccl_api.h"

namespace dws::nccl {
namespace {

static_assert(sizeof(NcclUniqueId) == sizeof(ncclUniqueId));
static_assert(alignof(NcclUniqueId) == alignof(ncclUniqueId));
static_assert(std::is_trivially_copyable_v<NcclUniqueId>);
static_assert(kUniqueIdBytes == NCCL_UNIQUE_ID_BYTES);
static_assert(kNcclUndefined == NCCL_CONFIG_UNDEF_INT);
static_assert(kNcclUint8 == ncclUint8);

static_assert(static_cast<int>(NcclResult::kSuccess) == ncclSuccess);
static_assert(static_cast<int>(NcclResult::kUnhandledCudaError) == ncclUnhandledCudaError);
static_assert(static_cast<int>(NcclResult::kSystemError) == ncclSystemError);
static_assert(static_cast<int>(NcclResult::kInternalError) == ncclInternalError);
static_assert(static_cast<int>(NcclResult::kInvalidArgument) == ncclInvalidArgument);
static_assert(static_cast<int>(NcclResult::kInvalidUsage) == ncclInvalidUsage);
static_assert(static_cast<int>(NcclResult::kRemoteError) == ncclRemoteError);
static_assert(static_cast<int>(NcclResult::kInProgress) == ncclInProgress);

// Our struct has the first fields of NCCL's.
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));
static_assert(kNcclVersionMin == NCCL_VERSION(2, 18, 0));
#define DWS_NCCL_FIELD(ours, theirs)                                           \
  static_assert(offsetof(NcclConfig, ours) == offsetof(ncclConfig_t, theirs)); \
  static_assert(std::is_same_v<decltype(NcclConfig::ours), decltype(ncclConfig_t::theirs)>)
DWS_NCCL_FIELD(size, size);
DWS_NCCL_FIELD(magic, magic);
DWS_NCCL_FIELD(version, version);
DWS_NCCL_FIELD(blocking, blocking);
DWS_NCCL_FIELD(cga_cluster_size, cgaClusterSize);
DWS_NCCL_FIELD(min_ctas, minCTAs);
DWS_NCCL_FIELD(max_ctas, maxCTAs);
DWS_NCCL_FIELD(net_name, netName);
DWS_NCCL_FIELD(split_share, splitShare);
#undef DWS_NCCL_FIELD

// True if NCCL's type and ours are passed in the same way, as parameter and as result.
template <typename Ours, typename Theirs>
constexpr bool kAlike = std::is_same_v<Ours, Theirs> ||
                        (std::is_pointer_v<Ours> && std::is_pointer_v<Theirs>) ||
                        (std::is_enum_v<Theirs> && sizeof(Ours) == sizeof(Theirs)) ||
                        (std::is_same_v<Ours, NcclUniqueId> &&
                         std::is_same_v<Theirs, ncclUniqueId>);

template <typename Ours, typename Theirs>
struct AlikeFunctions : std::false_type {};
template <typename R1, typename... P1, typename R2, typename... P2>
struct AlikeFunctions<R1 (*)(P1...), R2 (*)(P2...)>
    : std::bool_constant<sizeof...(P1) == sizeof...(P2)> {
  static_assert(kAlike<R1, R2>);
  static_assert((kAlike<P1, P2> && ...));
};

#define DWS_NCCL_SAME(member, symbol, result, parameters) \
  static_assert(AlikeFunctions<decltype(NcclFunctions::member), decltype(&::symbol)>::value);
DWS_NCCL_FUNCTIONS(DWS_NCCL_SAME)
#undef DWS_NCCL_SAME

}  // namespace
}  // namespace dws::nccl
