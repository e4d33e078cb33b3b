// Our declarations of the types and constants of the CUDA driver's interface that DWS uses
// (driver_api.h says why). Values and layouts are those of the driver, names are ours.
#pragma once

#include <cstddef>
#include <cstdint>

namespace dws::cuda {

// The results that DWS distinguishes, or that the tests' fake driver returns.
enum class DriverResult : int {
  kSuccess = 0,
  kInvalidValue = 1,
  kOutOfMemory = 2,
  kNotInitialized = 3,
  kDeinitialized = 4,
  kNoDevice = 100,
  kInvalidDevice = 101,
  kInvalidImage = 200,
  kInvalidContext = 201,
  kMapFailed = 205,
  kUnmapFailed = 206,
  kAlreadyMapped = 208,
  kNoBinaryForGpu = 209,
  kEccUncorrectable = 214,
  kNvlinkUncorrectable = 220,
  kContained = 226,
  kOperatingSystem = 304,
  kInvalidHandle = 400,
  kNotFound = 500,
  kNotReady = 600,
  kIllegalAddress = 700,
  kLaunchTimeout = 702,
  kContextIsDestroyed = 709,
  kAssert = 710,
  kHostMemoryAlreadyRegistered = 712,
  kHostMemoryNotRegistered = 713,
  kHardwareStackError = 714,
  kIllegalInstruction = 715,
  kMisalignedAddress = 716,
  kInvalidAddressSpace = 717,
  kInvalidPc = 718,
  kLaunchFailed = 719,
  kNotPermitted = 800,
  kNotSupported = 801,
  kMpsConnectionFailed = 805,
  kMpsRpcFailure = 806,
  kMpsClientTerminated = 810,
  kExternalDevice = 911,
  kUnknown = 999,
};

enum class DeviceAttribute : int {
  kMultiprocessorCount = 16,
  kComputeCapabilityMajor = 75,
  kComputeCapabilityMinor = 76,
  kMemoryManagement = 102,
  kDescriptorHandles = 103,
  kMemoryPools = 115,
  kFabricHandles = 128,
};

enum class PointerAttribute : int {
  kMemoryType = 2,           // unsigned: MemoryType
  kBufferId = 7,             // unsigned long long; valid only in the process that owns the buffer
  kDeviceOrdinal = 9,        // int
  kLegacyIpcCapable = 10,    // bool
  kRangeStart = 11,          // CUdeviceptr
  kRangeSize = 12,           // size_t
  kMapped = 13,              // bool
  kAllowedHandleTypes = 14,  // unsigned long long: bits of HandleType
  kPool = 17,                // CUmemoryPool; null: not of a pool
  kMappingSize = 18,         // size_t
  kMappingBase = 19,         // CUdeviceptr
};

enum class MemoryType : unsigned { kHost = 1, kDevice = 2 };
enum class HandleType : int { kNone = 0, kDescriptor = 1, kFabric = 8 };
enum class AllocationType : int { kInvalid = 0, kPinned = 1 };
enum class LocationType : int { kInvalid = 0, kDevice = 1, kHost = 2 };
enum class AccessFlags : int { kNone = 0, kRead = 1, kReadWrite = 3 };
enum class Granularity : int { kMinimum = 0, kRecommended = 1 };

inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr unsigned kIpcLazyEnablePeerAccess = 1;
inline constexpr unsigned kHostAllocPortable = 1;
inline constexpr unsigned kHostAllocDeviceMap = 2;
inline constexpr unsigned kHostRegisterPortable = 1;
inline constexpr unsigned kHostRegisterDeviceMap = 2;

inline constexpr size_t kDriverHandleBytes = 64;

struct DeviceUuid {
  unsigned char bytes[16];
};

struct IpcMemHandle {
  unsigned char bytes[kDriverHandleBytes];
};

struct FabricHandle {
  unsigned char bytes[kDriverHandleBytes];
};

struct PoolPointerHandle {
  unsigned char bytes[kDriverHandleBytes];
};

struct MemLocation {
  LocationType type;
  int id;
};

struct MemAccess {
  MemLocation location;
  AccessFlags flags;
};

struct MemAllocationProperties {
  AllocationType type;
  HandleType handle_types;  // bits
  MemLocation location;
  void* windows_metadata;
  unsigned char compression_type;
  unsigned char gpu_direct_rdma_capable;
  unsigned short usage;
  unsigned char reserved[4];
};

struct MemPoolProperties {
  AllocationType type;
  HandleType handle_types;
  MemLocation location;
  void* windows_attributes;
  size_t max_size;
  unsigned short usage;
  unsigned char reserved[54];
};

}  // namespace dws::cuda
