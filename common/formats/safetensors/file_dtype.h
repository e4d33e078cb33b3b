// The element types of safetensors files. dws::DType has only those types that DWS can encode.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/status.h"
#include "common/model/tensor_spec.h"

namespace dws::safetensors {

// In the official library's order (0.4 to 0.6), which is by alignment, and two that other writers
// use. The library writes tensors of the last type first.
enum class FileDType : uint8_t {
  kBool,
  kF4,
  kF6E2M3,
  kF6E3M2,
  kU8,
  kI8,
  kF8E5M2,
  kF8E4M3,
  kF8E8M0,
  kF8E4M3Fnuz,
  kF8E5M2Fnuz,
  kI16,
  kU16,
  kF16,
  kBF16,
  kI32,
  kU32,
  kF32,
  kC64,
  kF64,
  kI64,
  kU64,
};
inline constexpr uint32_t kFileDTypeCount = 22;

// Returns the type named `name`, for example "BF16"; nullopt: the official library has no such
// name.
std::optional<FileDType> FileDTypeNamed(std::string_view name);
std::string_view NameOf(FileDType dtype);

// Bits of one element: 4, 6, 8, 16, 32 or 64.
uint32_t ElementBits(FileDType dtype);

// The dtype of DWS; nullopt for C64 and for elements smaller than a byte.
std::optional<DType> ModelDType(FileDType dtype);
FileDType FileDTypeOf(DType dtype);

// The size of a tensor in bytes. INVALID_ARGUMENT: not a whole number of bytes. RESOURCE_EXHAUSTED:
// more than limits::kTensorBytesMax, or too large for 64 bits.
Result<uint64_t> TensorBytes(FileDType dtype, const std::vector<uint64_t>& shape);

}  // namespace dws::safetensors
