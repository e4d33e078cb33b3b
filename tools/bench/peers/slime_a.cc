// rank0000_flush000000.safetensors: __positions__ (bytes), __values__ (elements), and in the
// metadata the place of each parameter in both. Positions are int32 numbers of elements
// ("indices"), or gaps of 16 bits, 32 for a parameter with a longer one ("deltas"); "deltas_zstd"
// wraps that file.
#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "common/formats/safetensors/header.h"
#include "common/formats/slime_delta/format_a.h"
#include "common/formats/slime_delta/payload.h"
#include "tools/bench/peers/peer.h"

namespace dws::bench {
namespace {

using slime::FlushEncoding;

std::vector<uint32_t> ChangedElements(const TensorPair& tensor) {
  const size_t width = ElementBytes(tensor.spec.dtype);
  std::vector<uint32_t> changed;
  for (size_t at = 0; at < tensor.before.size(); at += width) {
    if (std::memcmp(tensor.before.data() + at, tensor.after.data() + at, width) != 0) {
      changed.push_back(static_cast<uint32_t>(at / width));
    }
  }
  return changed;
}

void AppendNumber(uint32_t number, size_t width, std::vector<std::byte>& to) {
  to.resize(to.size() + width);
  std::memcpy(to.data() + to.size() - width, &number, width);
}

// Absolute positions to gaps: the elements between each one and the one before.
size_t MakeGaps(std::vector<uint32_t>& positions) {
  uint32_t longest = 0;
  for (size_t i = positions.size(); i-- > 1;) {
    positions[i] -= positions[i - 1] + 1;
    longest = std::max(longest, positions[i]);
  }
  if (!positions.empty()) longest = std::max(longest, positions[0]);
  return longest <= std::numeric_limits<uint16_t>::max() ? 2 : 4;
}

// All tensors have one dtype, like those of one flush.
Result<std::vector<std::byte>> Encode(std::span<const TensorPair> tensors, FlushEncoding encoding) {
  const bool gaps = encoding != FlushEncoding::kIndices;
  std::vector<std::byte> positions;
  std::vector<std::byte> values;
  nlohmann::ordered_json params = nlohmann::ordered_json::array();
  for (const TensorPair& tensor : tensors) {
    std::vector<uint32_t> changed = ChangedElements(tensor);
    if (changed.empty()) continue;
    const size_t value_width = ElementBytes(tensor.spec.dtype);
    const size_t pos_start = positions.size();
    const size_t val_start = values.size() / value_width;
    for (const uint32_t element : changed) {
      const auto value = tensor.after.begin() + static_cast<ptrdiff_t>(element * value_width);
      values.insert(values.end(), value, value + static_cast<ptrdiff_t>(value_width));
    }
    const size_t width = gaps ? MakeGaps(changed) : 4;
    for (const uint32_t number : changed) AppendNumber(number, width, positions);
    params.push_back({{"name", tensor.spec.name},
                      {"dtype", "bfloat16"},
                      {"shape", tensor.spec.shape},
                      {"pos_start", pos_start},
                      {"pos_end", positions.size()},
                      {"pos_width", width},
                      {"val_start", val_start},
                      {"val_end", values.size() / value_width}});
  }
  const std::vector<safetensors::TensorBytesView> columns = {
      {.name = "__positions__", .shape = {positions.size()}, .bytes = positions},
      {.name = "__values__",
       .dtype = safetensors::FileDType::kBF16,
       .shape = {values.size() / 2},
       .bytes = values}};
  return safetensors::MakeFile({{"params", params.dump()}}, columns);
}

Status Decode(ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states,
              FlushEncoding encoding) {
  DWS_ASSIGN_OR_RETURN(const slime::Flush flush, slime::ParseFlush(bytes, encoding, "flush"));
  for (const slime::FlushParam& param : flush.params) {
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TensorPair& tensor) {
      return tensor.spec.name == param.name;
    });
    if (found == tensors.end()) return DataLossError("there is no tensor '{}'", param.name);
    DWS_RETURN_IF_ERROR(
        slime::ApplyFlushParam(flush, param, states[static_cast<size_t>(found - tensors.begin())]));
  }
  return OkStatus();
}

}  // namespace

Peer SlimeIndices() {
  return {.id = "P2d",
          .name = "slime format A: indices",
          .bar = std::nullopt,
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return Encode(tensors, FlushEncoding::kIndices);
          },
          .decode =
              [](ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states) {
                return Decode(bytes, tensors, states, FlushEncoding::kIndices);
              }};
}

Peer SlimeDeltas() {
  return {.id = "P2e",
          .name = "slime format A: deltas",
          .bar = std::nullopt,
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return Encode(tensors, FlushEncoding::kDeltas);
          },
          .decode =
              [](ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states) {
                return Decode(bytes, tensors, states, FlushEncoding::kDeltas);
              }};
}

Peer SlimeDeltasZstd() {
  return {.id = "P2a",
          .name = "slime format A: deltas_zstd",
          .bar = AtLeast(3.0),
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> file,
                                 Encode(tensors, FlushEncoding::kDeltas));
            return slime::CompressEntry(file);
          },
          .decode = [](ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states)
              -> Status { return Decode(bytes, tensors, states, FlushEncoding::kDeltasZstd); }};
}

}  // namespace dws::bench
