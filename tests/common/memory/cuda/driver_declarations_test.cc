// Compares our declarations of the driver's interface (driver_api.h) with <cuda.h>. This is checked
// at compile time, in builds with --config=cuda; the test checks that the symbols exist.
//
// Macros of <cuda.h> give the versions of symbols: cuMemAlloc must expand to the name in our table.
// The ABI is compared, not the names of types: both are pointers, or both have the same size and
// class.
#include <cuda.h>
#include <dlfcn.h>

#include <catch2/catch.hpp>
#include <cstddef>
#include <string>
#include <type_traits>

#include "common/memory/cuda/driver_api.h"

namespace dws::cuda {
namespace {

template <typename Ours, typename Theirs>
constexpr bool SameObject() {
  return sizeof(Ours) == sizeof(Theirs) && alignof(Ours) == alignof(Theirs);
}

template <typename Ours, typename Theirs>
constexpr bool SamePassed() {
  if constexpr (std::is_pointer_v<Ours> || std::is_pointer_v<Theirs>) {
    if constexpr (!std::is_pointer_v<Ours> || !std::is_pointer_v<Theirs>) {
      return false;
    } else {
      using OursTo = std::remove_pointer_t<Ours>;
      using TheirsTo = std::remove_pointer_t<Theirs>;
      if constexpr (std::is_void_v<OursTo>) {
        return true;  // we declare the driver's handles as void*
      } else if constexpr (std::is_void_v<TheirsTo>) {
        return false;
      } else {
        return SamePassed<std::remove_cv_t<OursTo>, std::remove_cv_t<TheirsTo>>();
      }
    }
  } else {
    return std::is_class_v<Ours> == std::is_class_v<Theirs> &&
           std::is_floating_point_v<Ours> == std::is_floating_point_v<Theirs> &&
           SameObject<Ours, Theirs>();
  }
}

template <typename Ours, typename Theirs>
struct SameFunction : std::false_type {};
template <typename... Ours, typename... Theirs>
struct SameFunction<DriverResult (*)(Ours...), CUresult (*)(Theirs...)> {
  static constexpr bool Compare() {
    if constexpr (sizeof...(Ours) != sizeof...(Theirs)) {
      return false;
    } else {
      return (SamePassed<Ours, Theirs>() && ...);
    }
  }
  static constexpr bool value = Compare();
};

// <cuda.h> declares cuMemAlloc_v2 of our table as cuMemAlloc, a macro for cuMemAlloc_v2.
#define DWS_CHECK_FUNCTION(member, symbol, parameters) \
  static_assert(SameFunction<decltype(DriverApi::member), decltype(&symbol)>::value, #symbol);
DWS_CUDA_DRIVER_FUNCTIONS(DWS_CHECK_FUNCTION)
#undef DWS_CHECK_FUNCTION

#define DWS_CHECK_VALUE(ours, theirs) \
  static_assert(static_cast<long long>(ours) == static_cast<long long>(theirs), #theirs)

DWS_CHECK_VALUE(DriverResult::kSuccess, CUDA_SUCCESS);
DWS_CHECK_VALUE(DriverResult::kInvalidValue, CUDA_ERROR_INVALID_VALUE);
DWS_CHECK_VALUE(DriverResult::kOutOfMemory, CUDA_ERROR_OUT_OF_MEMORY);
DWS_CHECK_VALUE(DriverResult::kNotInitialized, CUDA_ERROR_NOT_INITIALIZED);
DWS_CHECK_VALUE(DriverResult::kDeinitialized, CUDA_ERROR_DEINITIALIZED);
DWS_CHECK_VALUE(DriverResult::kNoDevice, CUDA_ERROR_NO_DEVICE);
DWS_CHECK_VALUE(DriverResult::kInvalidDevice, CUDA_ERROR_INVALID_DEVICE);
DWS_CHECK_VALUE(DriverResult::kInvalidImage, CUDA_ERROR_INVALID_IMAGE);
DWS_CHECK_VALUE(DriverResult::kInvalidContext, CUDA_ERROR_INVALID_CONTEXT);
DWS_CHECK_VALUE(DriverResult::kMapFailed, CUDA_ERROR_MAP_FAILED);
DWS_CHECK_VALUE(DriverResult::kUnmapFailed, CUDA_ERROR_UNMAP_FAILED);
DWS_CHECK_VALUE(DriverResult::kNoBinaryForGpu, CUDA_ERROR_NO_BINARY_FOR_GPU);
DWS_CHECK_VALUE(DriverResult::kOperatingSystem, CUDA_ERROR_OPERATING_SYSTEM);
DWS_CHECK_VALUE(DriverResult::kInvalidHandle, CUDA_ERROR_INVALID_HANDLE);
DWS_CHECK_VALUE(DriverResult::kNotFound, CUDA_ERROR_NOT_FOUND);
DWS_CHECK_VALUE(DriverResult::kNotReady, CUDA_ERROR_NOT_READY);
DWS_CHECK_VALUE(DriverResult::kAlreadyMapped, CUDA_ERROR_ALREADY_MAPPED);
DWS_CHECK_VALUE(DriverResult::kEccUncorrectable, CUDA_ERROR_ECC_UNCORRECTABLE);
DWS_CHECK_VALUE(DriverResult::kNvlinkUncorrectable, CUDA_ERROR_NVLINK_UNCORRECTABLE);
DWS_CHECK_VALUE(DriverResult::kContained, CUDA_ERROR_CONTAINED);
DWS_CHECK_VALUE(DriverResult::kIllegalAddress, CUDA_ERROR_ILLEGAL_ADDRESS);
DWS_CHECK_VALUE(DriverResult::kLaunchTimeout, CUDA_ERROR_LAUNCH_TIMEOUT);
DWS_CHECK_VALUE(DriverResult::kContextIsDestroyed, CUDA_ERROR_CONTEXT_IS_DESTROYED);
DWS_CHECK_VALUE(DriverResult::kAssert, CUDA_ERROR_ASSERT);
DWS_CHECK_VALUE(DriverResult::kHardwareStackError, CUDA_ERROR_HARDWARE_STACK_ERROR);
DWS_CHECK_VALUE(DriverResult::kIllegalInstruction, CUDA_ERROR_ILLEGAL_INSTRUCTION);
DWS_CHECK_VALUE(DriverResult::kInvalidAddressSpace, CUDA_ERROR_INVALID_ADDRESS_SPACE);
DWS_CHECK_VALUE(DriverResult::kInvalidPc, CUDA_ERROR_INVALID_PC);
DWS_CHECK_VALUE(DriverResult::kHostMemoryAlreadyRegistered,
                CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED);
DWS_CHECK_VALUE(DriverResult::kHostMemoryNotRegistered, CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED);
DWS_CHECK_VALUE(DriverResult::kMisalignedAddress, CUDA_ERROR_MISALIGNED_ADDRESS);
DWS_CHECK_VALUE(DriverResult::kLaunchFailed, CUDA_ERROR_LAUNCH_FAILED);
DWS_CHECK_VALUE(DriverResult::kNotPermitted, CUDA_ERROR_NOT_PERMITTED);
DWS_CHECK_VALUE(DriverResult::kNotSupported, CUDA_ERROR_NOT_SUPPORTED);
DWS_CHECK_VALUE(DriverResult::kMpsConnectionFailed, CUDA_ERROR_MPS_CONNECTION_FAILED);
DWS_CHECK_VALUE(DriverResult::kMpsRpcFailure, CUDA_ERROR_MPS_RPC_FAILURE);
DWS_CHECK_VALUE(DriverResult::kMpsClientTerminated, CUDA_ERROR_MPS_CLIENT_TERMINATED);
DWS_CHECK_VALUE(DriverResult::kExternalDevice, CUDA_ERROR_EXTERNAL_DEVICE);
DWS_CHECK_VALUE(DriverResult::kUnknown, CUDA_ERROR_UNKNOWN);

DWS_CHECK_VALUE(DeviceAttribute::kMultiprocessorCount, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT);
DWS_CHECK_VALUE(DeviceAttribute::kComputeCapabilityMajor,
                CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR);
DWS_CHECK_VALUE(DeviceAttribute::kComputeCapabilityMinor,
                CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR);
DWS_CHECK_VALUE(DeviceAttribute::kMemoryManagement,
                CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED);
DWS_CHECK_VALUE(DeviceAttribute::kDescriptorHandles,
                CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR_SUPPORTED);
DWS_CHECK_VALUE(DeviceAttribute::kMemoryPools, CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED);
DWS_CHECK_VALUE(DeviceAttribute::kFabricHandles, CU_DEVICE_ATTRIBUTE_HANDLE_TYPE_FABRIC_SUPPORTED);

DWS_CHECK_VALUE(PointerAttribute::kMemoryType, CU_POINTER_ATTRIBUTE_MEMORY_TYPE);
DWS_CHECK_VALUE(PointerAttribute::kBufferId, CU_POINTER_ATTRIBUTE_BUFFER_ID);
DWS_CHECK_VALUE(PointerAttribute::kDeviceOrdinal, CU_POINTER_ATTRIBUTE_DEVICE_ORDINAL);
DWS_CHECK_VALUE(PointerAttribute::kLegacyIpcCapable,
                CU_POINTER_ATTRIBUTE_IS_LEGACY_CUDA_IPC_CAPABLE);
DWS_CHECK_VALUE(PointerAttribute::kRangeStart, CU_POINTER_ATTRIBUTE_RANGE_START_ADDR);
DWS_CHECK_VALUE(PointerAttribute::kRangeSize, CU_POINTER_ATTRIBUTE_RANGE_SIZE);
DWS_CHECK_VALUE(PointerAttribute::kMapped, CU_POINTER_ATTRIBUTE_MAPPED);
DWS_CHECK_VALUE(PointerAttribute::kAllowedHandleTypes, CU_POINTER_ATTRIBUTE_ALLOWED_HANDLE_TYPES);
DWS_CHECK_VALUE(PointerAttribute::kPool, CU_POINTER_ATTRIBUTE_MEMPOOL_HANDLE);
DWS_CHECK_VALUE(PointerAttribute::kMappingSize, CU_POINTER_ATTRIBUTE_MAPPING_SIZE);
DWS_CHECK_VALUE(PointerAttribute::kMappingBase, CU_POINTER_ATTRIBUTE_MAPPING_BASE_ADDR);

DWS_CHECK_VALUE(MemoryType::kHost, CU_MEMORYTYPE_HOST);
DWS_CHECK_VALUE(MemoryType::kDevice, CU_MEMORYTYPE_DEVICE);
DWS_CHECK_VALUE(HandleType::kNone, CU_MEM_HANDLE_TYPE_NONE);
DWS_CHECK_VALUE(HandleType::kDescriptor, CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR);
DWS_CHECK_VALUE(HandleType::kFabric, CU_MEM_HANDLE_TYPE_FABRIC);
DWS_CHECK_VALUE(AllocationType::kInvalid, CU_MEM_ALLOCATION_TYPE_INVALID);
DWS_CHECK_VALUE(AllocationType::kPinned, CU_MEM_ALLOCATION_TYPE_PINNED);
DWS_CHECK_VALUE(LocationType::kInvalid, CU_MEM_LOCATION_TYPE_INVALID);
DWS_CHECK_VALUE(LocationType::kDevice, CU_MEM_LOCATION_TYPE_DEVICE);
DWS_CHECK_VALUE(LocationType::kHost, CU_MEM_LOCATION_TYPE_HOST);
DWS_CHECK_VALUE(AccessFlags::kNone, CU_MEM_ACCESS_FLAGS_PROT_NONE);
DWS_CHECK_VALUE(AccessFlags::kRead, CU_MEM_ACCESS_FLAGS_PROT_READ);
DWS_CHECK_VALUE(AccessFlags::kReadWrite, CU_MEM_ACCESS_FLAGS_PROT_READWRITE);
DWS_CHECK_VALUE(Granularity::kMinimum, CU_MEM_ALLOC_GRANULARITY_MINIMUM);
DWS_CHECK_VALUE(Granularity::kRecommended, CU_MEM_ALLOC_GRANULARITY_RECOMMENDED);

DWS_CHECK_VALUE(kStreamNonBlocking, CU_STREAM_NON_BLOCKING);
DWS_CHECK_VALUE(kEventDefault, CU_EVENT_DEFAULT);
DWS_CHECK_VALUE(kEventDisableTiming, CU_EVENT_DISABLE_TIMING);
DWS_CHECK_VALUE(kIpcLazyEnablePeerAccess, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
DWS_CHECK_VALUE(kHostAllocPortable, CU_MEMHOSTALLOC_PORTABLE);
DWS_CHECK_VALUE(kHostAllocDeviceMap, CU_MEMHOSTALLOC_DEVICEMAP);
DWS_CHECK_VALUE(kHostRegisterPortable, CU_MEMHOSTREGISTER_PORTABLE);
DWS_CHECK_VALUE(kHostRegisterDeviceMap, CU_MEMHOSTREGISTER_DEVICEMAP);
DWS_CHECK_VALUE(kDriverHandleBytes, CU_IPC_HANDLE_SIZE);

#define DWS_CHECK_FIELD(Ours, ours, Theirs, theirs)                 \
  static_assert(offsetof(Ours, ours) == offsetof(Theirs, theirs) && \
                    sizeof(Ours::ours) == sizeof(Theirs::theirs),   \
                #Theirs "::" #theirs)

static_assert(SameObject<DeviceUuid, CUuuid>());
static_assert(SameObject<IpcMemHandle, CUipcMemHandle>());
static_assert(SameObject<FabricHandle, CUmemFabricHandle>());
static_assert(SameObject<PoolPointerHandle, CUmemPoolPtrExportData>());
static_assert(SameObject<MemLocation, CUmemLocation>());
DWS_CHECK_FIELD(MemLocation, type, CUmemLocation, type);
DWS_CHECK_FIELD(MemLocation, id, CUmemLocation, id);
static_assert(SameObject<MemAccess, CUmemAccessDesc>());
DWS_CHECK_FIELD(MemAccess, location, CUmemAccessDesc, location);
DWS_CHECK_FIELD(MemAccess, flags, CUmemAccessDesc, flags);
static_assert(SameObject<MemAllocationProperties, CUmemAllocationProp>());
DWS_CHECK_FIELD(MemAllocationProperties, type, CUmemAllocationProp, type);
DWS_CHECK_FIELD(MemAllocationProperties, handle_types, CUmemAllocationProp, requestedHandleTypes);
DWS_CHECK_FIELD(MemAllocationProperties, location, CUmemAllocationProp, location);
DWS_CHECK_FIELD(MemAllocationProperties, windows_metadata, CUmemAllocationProp,
                win32HandleMetaData);
DWS_CHECK_FIELD(MemAllocationProperties, compression_type, CUmemAllocationProp,
                allocFlags.compressionType);
DWS_CHECK_FIELD(MemAllocationProperties, gpu_direct_rdma_capable, CUmemAllocationProp,
                allocFlags.gpuDirectRDMACapable);
DWS_CHECK_FIELD(MemAllocationProperties, usage, CUmemAllocationProp, allocFlags.usage);
DWS_CHECK_FIELD(MemAllocationProperties, reserved, CUmemAllocationProp, allocFlags.reserved);
static_assert(SameObject<MemPoolProperties, CUmemPoolProps>());
DWS_CHECK_FIELD(MemPoolProperties, type, CUmemPoolProps, allocType);
DWS_CHECK_FIELD(MemPoolProperties, handle_types, CUmemPoolProps, handleTypes);
DWS_CHECK_FIELD(MemPoolProperties, location, CUmemPoolProps, location);
DWS_CHECK_FIELD(MemPoolProperties, windows_attributes, CUmemPoolProps, win32SecurityAttributes);
DWS_CHECK_FIELD(MemPoolProperties, max_size, CUmemPoolProps, maxSize);
DWS_CHECK_FIELD(MemPoolProperties, usage, CUmemPoolProps, usage);
DWS_CHECK_FIELD(MemPoolProperties, reserved, CUmemPoolProps, reserved);

TEST_CASE("the toolkit's driver library has all symbols that we load", "[cuda]") {
  // The stub that programs link against: it has the driver's symbols and does nothing.
  void* const stub = ::dlopen("../cuda/stubs/libcuda.so", RTLD_LAZY | RTLD_LOCAL);
  REQUIRE(stub != nullptr);
#define DWS_SYMBOL(member, symbol, parameters) DWS_TEXT(symbol),
#define DWS_TEXT(symbol) #symbol
  const char* const symbols[] = {DWS_CUDA_DRIVER_FUNCTIONS(DWS_SYMBOL)};
#undef DWS_TEXT
#undef DWS_SYMBOL
  for (const char* symbol : symbols) {
    CAPTURE(symbol);
    CHECK(::dlsym(stub, symbol) != nullptr);
  }
}

}  // namespace
}  // namespace dws::cuda
