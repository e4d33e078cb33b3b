#include "common/formats/safetensors/file_dtype.h"

#include <algorithm>
#include <array>
#include <string>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws::safetensors {
namespace {

struct Entry {
  std::string_view name;
  uint32_t bits;
};

// In the order of FileDType, whose values are the indices. DWS uses the same names for its dtypes,
// so ModelDType and FileDTypeOf convert by name.
constexpr std::array<Entry, kFileDTypeCount> kEntries = {{
    {"BOOL", 8},        {"F4", 4},      {"F6_E2M3", 6}, {"F6_E3M2", 6}, {"U8", 8},
    {"I8", 8},          {"F8_E5M2", 8}, {"F8_E4M3", 8}, {"F8_E8M0", 8}, {"F8_E4M3FNUZ", 8},
    {"F8_E5M2FNUZ", 8}, {"I16", 16},    {"U16", 16},    {"F16", 16},    {"BF16", 16},
    {"I32", 32},        {"U32", 32},    {"F32", 32},    {"C64", 64},    {"F64", 64},
    {"I64", 64},        {"U64", 64},
}};

const Entry& EntryOf(FileDType dtype) { return kEntries[static_cast<size_t>(dtype)]; }

}  // namespace

std::optional<FileDType> FileDTypeNamed(std::string_view name) {
  for (size_t i = 0; i < kEntries.size(); ++i) {
    if (kEntries[i].name == name) return static_cast<FileDType>(i);
  }
  return std::nullopt;
}

std::string_view NameOf(FileDType dtype) { return EntryOf(dtype).name; }

uint32_t ElementBits(FileDType dtype) { return EntryOf(dtype).bits; }

std::optional<DType> ModelDType(FileDType dtype) {
  for (uint32_t number = 1;; ++number) {
    const std::optional<DType> model = DTypeFromNumber(number);
    if (!model.has_value() || dws::ToString(*model) == NameOf(dtype)) return model;
  }
}

FileDType FileDTypeOf(DType dtype) {
  const std::optional<FileDType> found = FileDTypeNamed(dws::ToString(dtype));
  DWS_CHECK(found.has_value());
  return *found;
}

Result<uint64_t> TensorBytes(FileDType dtype, const std::vector<uint64_t>& shape) {
  if (std::find(shape.begin(), shape.end(), 0U) != shape.end()) return 0;
  constexpr uint64_t kBitsMax = limits::kTensorBytesMax * 8;
  uint64_t bits = ElementBits(dtype);
  for (const uint64_t size : shape) {
    if (size > kBitsMax / bits) {
      return ResourceExhaustedError("{} [{}] has more than the {} bytes allowed", NameOf(dtype),
                                    fmt::join(shape, ", "), limits::kTensorBytesMax);
    }
    bits *= size;
  }
  if (bits % 8 != 0) {
    return InvalidArgumentError("{} [{}] has {} bits, expected whole bytes", NameOf(dtype),
                                fmt::join(shape, ", "), bits);
  }
  return bits / 8;
}

}  // namespace dws::safetensors
