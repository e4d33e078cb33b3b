// Fixture of tests of CUDA memory: the driver (the fake one, or a GPU's), its devices, and copying
// bytes to and from them.
#pragma once

#include <catch2/catch.hpp>
#include <cstddef>
#include <cstdlib>
#include <string>
#include <vector>

#include "common/memory/cuda/cuda_device.h"
#include "common/memory/cuda/kernel_image.h"

namespace dws::cuda {

inline CudaDriverPtr LoadDriver() {
  const Result<CudaDriverPtr> driver = CudaDriver::Load();
  INFO(ToString(driver.status()));
  REQUIRE(driver.ok());
  return *driver;
}

// The device of this ordinal.
inline CudaDevicePtr OpenDevice(size_t ordinal = 0) {
  const CudaDriverPtr driver = LoadDriver();
  const Result<std::vector<std::string>> uuids = driver->DeviceUuids();
  REQUIRE((uuids.ok() && ordinal < uuids->size()));
  const Result<CudaDevicePtr> device = CudaDevice::Open(driver, (*uuids)[ordinal], KernelImage());
  INFO(ToString(device.status()));
  REQUIRE(device.ok());
  return *device;
}

// Sets an environment variable for its lifetime.
class Setting {
 public:
  Setting(const char* name, const std::string& value) : name_(name) {
    ::setenv(name, value.c_str(), 1);
  }
  ~Setting() { ::unsetenv(name_); }
  Setting(const Setting&) = delete;
  Setting& operator=(const Setting&) = delete;

 private:
  const char* name_;
};

// Returns whether the device is the fake driver's: some checks hold only there.
inline bool IsFake(const CudaDevice& device) { return device.name().starts_with("Fake"); }

inline std::vector<std::byte> ReadDevice(const CudaDevice& device, uint64_t address, size_t size) {
  std::vector<std::byte> bytes(size);
  Result<CudaStream> stream = device.CreateStream();
  REQUIRE(stream.ok());
  const Status copied = stream->CopyToHost(bytes, address);
  INFO(ToString(copied));
  REQUIRE((copied.ok() && stream->Synchronize().ok()));
  return bytes;
}

inline void WriteDevice(const CudaDevice& device, uint64_t address, ByteSpan bytes) {
  Result<CudaStream> stream = device.CreateStream();
  REQUIRE(stream.ok());
  const Status copied = stream->CopyToDevice(address, bytes);
  INFO(ToString(copied));
  REQUIRE((copied.ok() && stream->Synchronize().ok()));
}

// Bytes that depend on the range and the offset.
inline std::vector<std::byte> Pattern(size_t range, size_t size, uint8_t turn = 0) {
  std::vector<std::byte> bytes(size);
  for (size_t i = 0; i < size; ++i) {
    bytes[i] = static_cast<std::byte>((range * 31 + i * 7 + (i >> 8)) ^ turn);
  }
  return bytes;
}

}  // namespace dws::cuda
