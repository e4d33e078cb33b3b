// Reads a fuzzer's bytes as numbers, one after the other, and zeros at the end. Also makes old
// blocks and changes from such bytes, for all fuzz targets.
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <vector>

#include "common/base/bytes.h"
#include "common/model/class_table.h"
#include "common/model/tensor_spec.h"

namespace dws::fuzz {

using Bytes = std::vector<std::byte>;

class FuzzInput {
 public:
  FuzzInput(const uint8_t* bytes, size_t size) : rest_(std::as_bytes(std::span(bytes, size))) {}

  template <typename T>
  T Take() {
    T value{};
    const size_t size = std::min(sizeof(T), rest_.size());
    if (size != 0) std::memcpy(&value, rest_.data(), size);
    rest_ = rest_.subspan(size);
    return value;
  }
  // `size` bytes, or as many as are left.
  ByteSpan TakeBytes(size_t size) {
    const ByteSpan taken = rest_.first(std::min(size, rest_.size()));
    rest_ = rest_.subspan(taken.size());
    return taken;
  }
  ByteSpan rest() const { return rest_; }
  bool empty() const { return rest_.empty(); }

 private:
  ByteSpan rest_;
};

DType TakeDType(FuzzInput& input);

// Elements of a block: 1 to 65,536, mostly at most 256, so that inputs run fast.
uint32_t TakeElementCount(FuzzInput& input);

// A block of up to 32 repeated bytes of the input, or of noise.
Bytes TakeBlock(FuzzInput& input, size_t size_bytes);

// A class table in the form of a manifest; nullopt when the bytes are not a valid one.
std::optional<ClassTable> TakeClassTable(FuzzInput& input);

// Changes elements of `block` by the input: single steps, raw values, runs of equal steps, noise.
// Makes at most `changes_max` changes.
void TakeChanges(FuzzInput& input, DType dtype, size_t changes_max, MutableByteSpan block);

}  // namespace dws::fuzz
