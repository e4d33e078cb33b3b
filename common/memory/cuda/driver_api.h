// Our declaration of the part of the CUDA driver's interface that DWS calls. With it, all code that
// calls the driver is compiled and tested in every build, with or without a CUDA toolkit. A build
// with --config=cuda compares these declarations with <cuda.h> (tests/common/memory/cuda).
//
// Names are those of the driver in our spelling; the driver's manual describes the functions.
// Addresses of device memory are numbers (CUdeviceptr), handles of the driver are void*.
#pragma once

#include <cstddef>
#include <cstdint>

#include "common/memory/cuda/driver_types.h"

namespace dws::cuda {

// F(member of DriverApi, exported symbol, parameters). The symbols are the versions that <cuda.h>
// of CUDA 13 selects, if drivers of CUDA 12 export them too.
#define DWS_CUDA_DRIVER_FUNCTIONS(F)                                                             \
  F(init, cuInit, (unsigned flags))                                                              \
  F(driver_get_version, cuDriverGetVersion, (int* version))                                      \
  F(get_error_name, cuGetErrorName, (DriverResult error, const char** name))                     \
  F(get_error_string, cuGetErrorString, (DriverResult error, const char** text))                 \
  F(device_get_count, cuDeviceGetCount, (int* count))                                            \
  F(device_get, cuDeviceGet, (int* device, int ordinal))                                         \
  F(device_get_name, cuDeviceGetName, (char* name, int size, int device))                        \
  F(device_get_uuid, cuDeviceGetUuid_v2, (DeviceUuid * uuid, int device))                        \
  F(device_get_attribute, cuDeviceGetAttribute,                                                  \
    (int* value, DeviceAttribute attribute, int device))                                         \
  F(primary_context_retain, cuDevicePrimaryCtxRetain, (void** context, int device))              \
  F(primary_context_release, cuDevicePrimaryCtxRelease_v2, (int device))                         \
  F(context_set_current, cuCtxSetCurrent, (void* context))                                       \
  F(context_get_current, cuCtxGetCurrent, (void** context))                                      \
  F(module_load_data, cuModuleLoadData, (void** module, const void* image))                      \
  F(module_unload, cuModuleUnload, (void* module))                                               \
  F(module_get_function, cuModuleGetFunction, (void** function, void* module, const char* name)) \
  F(launch_kernel, cuLaunchKernel,                                                               \
    (void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,        \
     unsigned block_y, unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, \
     void** extra))                                                                              \
  F(mem_alloc, cuMemAlloc_v2, (uint64_t * address, size_t size))                                 \
  F(mem_free, cuMemFree_v2, (uint64_t address))                                                  \
  F(mem_get_info, cuMemGetInfo_v2, (size_t * free, size_t * total))                              \
  F(mem_get_address_range, cuMemGetAddressRange_v2,                                              \
    (uint64_t * base, size_t * size, uint64_t address))                                          \
  F(host_alloc, cuMemHostAlloc, (void** memory, size_t size, unsigned flags))                    \
  F(host_free, cuMemFreeHost, (void* memory))                                                    \
  F(host_register, cuMemHostRegister_v2, (void* memory, size_t size, unsigned flags))            \
  F(host_unregister, cuMemHostUnregister, (void* memory))                                        \
  F(host_get_device_pointer, cuMemHostGetDevicePointer_v2,                                       \
    (uint64_t * address, void* memory, unsigned flags))                                          \
  F(copy_to_device_async, cuMemcpyHtoDAsync_v2,                                                  \
    (uint64_t target, const void* source, size_t size, void* stream))                            \
  F(copy_to_host_async, cuMemcpyDtoHAsync_v2,                                                    \
    (void* target, uint64_t source, size_t size, void* stream))                                  \
  F(copy_on_device_async, cuMemcpyDtoDAsync_v2,                                                  \
    (uint64_t target, uint64_t source, size_t size, void* stream))                               \
  F(set_bytes_async, cuMemsetD8Async,                                                            \
    (uint64_t target, unsigned char value, size_t count, void* stream))                          \
  F(stream_create, cuStreamCreateWithPriority, (void** stream, unsigned flags, int priority))    \
  F(stream_destroy, cuStreamDestroy_v2, (void* stream))                                          \
  F(stream_synchronize, cuStreamSynchronize, (void* stream))                                     \
  F(stream_query, cuStreamQuery, (void* stream))                                                 \
  F(pointer_get_attribute, cuPointerGetAttribute,                                                \
    (void* value, PointerAttribute attribute, uint64_t address))                                 \
  F(ipc_get_handle, cuIpcGetMemHandle, (IpcMemHandle * handle, uint64_t address))                \
  F(ipc_open_handle, cuIpcOpenMemHandle_v2,                                                      \
    (uint64_t * address, IpcMemHandle handle, unsigned flags))                                   \
  F(ipc_close_handle, cuIpcCloseMemHandle, (uint64_t address))                                   \
  F(address_reserve, cuMemAddressReserve,                                                        \
    (uint64_t * address, size_t size, size_t alignment, uint64_t wanted, uint64_t flags))        \
  F(address_free, cuMemAddressFree, (uint64_t address, size_t size))                             \
  F(chunk_create, cuMemCreate,                                                                   \
    (uint64_t * handle, size_t size, const MemAllocationProperties* properties, uint64_t flags)) \
  F(chunk_release, cuMemRelease, (uint64_t handle))                                              \
  F(chunk_map, cuMemMap,                                                                         \
    (uint64_t address, size_t size, size_t offset, uint64_t handle, uint64_t flags))             \
  F(chunk_unmap, cuMemUnmap, (uint64_t address, size_t size))                                    \
  F(set_access, cuMemSetAccess,                                                                  \
    (uint64_t address, size_t size, const MemAccess* access, size_t count))                      \
  F(chunk_of_address, cuMemRetainAllocationHandle, (uint64_t * handle, void* address))           \
  F(chunk_properties, cuMemGetAllocationPropertiesFromHandle,                                    \
    (MemAllocationProperties * properties, uint64_t handle))                                     \
  F(allocation_granularity, cuMemGetAllocationGranularity,                                       \
    (size_t * granularity, const MemAllocationProperties* properties, Granularity option))       \
  F(chunk_export, cuMemExportToShareableHandle,                                                  \
    (void* shareable, uint64_t handle, HandleType type, uint64_t flags))                         \
  F(chunk_import, cuMemImportFromShareableHandle,                                                \
    (uint64_t * handle, void* shareable, HandleType type))                                       \
  F(pool_create, cuMemPoolCreate, (void** pool, const MemPoolProperties* properties))            \
  F(pool_destroy, cuMemPoolDestroy, (void* pool))                                                \
  F(pool_set_access, cuMemPoolSetAccess, (void* pool, const MemAccess* access, size_t count))    \
  F(pool_export, cuMemPoolExportToShareableHandle,                                               \
    (void* shareable, void* pool, HandleType type, uint64_t flags))                              \
  F(pool_import, cuMemPoolImportFromShareableHandle,                                             \
    (void** pool, void* shareable, HandleType type, uint64_t flags))                             \
  F(pool_export_pointer, cuMemPoolExportPointer, (PoolPointerHandle * data, uint64_t address))   \
  F(pool_import_pointer, cuMemPoolImportPointer,                                                 \
    (uint64_t * address, void* pool, PoolPointerHandle* data))                                   \
  F(alloc_async, cuMemAllocAsync, (uint64_t * address, size_t size, void* stream))               \
  F(alloc_from_pool_async, cuMemAllocFromPoolAsync,                                              \
    (uint64_t * address, size_t size, void* pool, void* stream))                                 \
  F(free_async, cuMemFreeAsync, (uint64_t address, void* stream))

// The functions of a loaded driver. cuda_driver.h loads them.
struct DriverApi {
#define DWS_CUDA_MEMBER(member, symbol, parameters) DriverResult(*member) parameters = nullptr;
  DWS_CUDA_DRIVER_FUNCTIONS(DWS_CUDA_MEMBER)
#undef DWS_CUDA_MEMBER
};

}  // namespace dws::cuda
