// rank0000_flush000000.safetensors: __positions__ (bytes), __values__ (elements), and in the
// metadata where each parameter lies in both. Positions are int32 numbers of elements ("indices"),
// or gaps of 16 bits, 32 for a parameter with a longer one ("deltas"); "deltas_zstd" wraps that
// file.
#include <algorithm>
#include <cstring>
#include <limits>
#include <nlohmann/json.hpp>

#include "tools/bench/peers/peer.h"
#include "tools/bench/peers/zstd_frame.h"
#include "tools/bench/safetensors_file.h"

namespace dws::bench {
namespace {

constexpr int kLevel = 1;

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

// Absolute positions to gaps: each one's distance from the one before, the first from 0.
size_t MakeGaps(std::vector<uint32_t>& positions) {
  uint32_t longest = 0;
  for (size_t i = positions.size(); i-- > 1;) {
    positions[i] -= positions[i - 1];
    longest = std::max(longest, positions[i]);
  }
  if (!positions.empty()) longest = std::max(longest, positions[0]);
  return longest <= std::numeric_limits<uint16_t>::max() ? 2 : 4;
}

std::vector<std::byte> Encode(std::span<const TensorPair> tensors, bool gaps) {
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
                      {"dtype", "torch.bfloat16"},
                      {"shape", tensor.spec.shape},
                      {"pos_start", pos_start},
                      {"pos_end", positions.size()},
                      {"pos_width", width},
                      {"val_start", val_start},
                      {"val_end", values.size() / value_width}});
  }
  return WriteTensorFile({.metadata = {{"params", params.dump()}},
                          .tensors = {{.name = "__positions__",
                                       .dtype = "U8",
                                       .shape = {positions.size()},
                                       .bytes = positions},
                                      {.name = "__values__",
                                       .dtype = "BF16",
                                       .shape = {values.size() / 2},
                                       .bytes = values}}});
}

Status DecodeParam(const nlohmann::json& param, bool gaps, const TensorPair& tensor,
                   ByteSpan positions, ByteSpan values, std::vector<std::byte>& state) {
  const size_t width = param.value("pos_width", 0U);
  const size_t value_width = ElementBytes(tensor.spec.dtype);
  const size_t count = (param.value("pos_end", 0U) - param.value("pos_start", 0U)) / width;
  const std::byte* position = positions.data() + param.value("pos_start", 0U);
  const std::byte* value = values.data() + param.value("val_start", 0U) * value_width;
  uint64_t element = 0;
  for (size_t i = 0; i < count; ++i) {
    uint32_t number = 0;
    std::memcpy(&number, position + i * width, width);
    element = gaps ? element + number : number;
    if ((element + 1) * value_width > state.size()) {
      return DataLossError("element {} is outside '{}'", element, tensor.spec.name);
    }
    std::memcpy(state.data() + element * value_width, value + i * value_width, value_width);
  }
  return OkStatus();
}

Status Decode(ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states,
              bool gaps) {
  DWS_ASSIGN_OR_RETURN(const TensorFile file, ParseTensorFile(bytes, "flush"));
  DWS_ASSIGN_OR_RETURN(const FileTensor positions, file.Find("__positions__"));
  DWS_ASSIGN_OR_RETURN(const FileTensor values, file.Find("__values__"));
  const nlohmann::json params = nlohmann::json::parse(file.metadata.at("params"), nullptr, false);
  for (const nlohmann::json& param : params) {
    const std::string name = param.value("name", "");
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TensorPair& tensor) {
      return tensor.spec.name == name;
    });
    if (found == tensors.end()) return DataLossError("there is no tensor '{}'", name);
    DWS_RETURN_IF_ERROR(DecodeParam(param, gaps, *found, positions.bytes, values.bytes,
                                    states[static_cast<size_t>(found - tensors.begin())]));
  }
  return OkStatus();
}

}  // namespace

Peer SlimeIndices() {
  return {.id = "P2d",
          .name = "slime format A: indices",
          .bar = std::nullopt,
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return Encode(tensors, false);
          },
          .decode = [](ByteSpan bytes, std::span<const TensorPair> tensors,
                       TensorStates& states) { return Decode(bytes, tensors, states, false); }};
}

Peer SlimeDeltas() {
  return {.id = "P2e",
          .name = "slime format A: deltas",
          .bar = std::nullopt,
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return Encode(tensors, true);
          },
          .decode = [](ByteSpan bytes, std::span<const TensorPair> tensors,
                       TensorStates& states) { return Decode(bytes, tensors, states, true); }};
}

Peer SlimeDeltasZstd() {
  return {.id = "P2a",
          .name = "slime format A: deltas_zstd",
          .bar = AtLeast(3.0),
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            return CompressFrame(Encode(tensors, true), kLevel);
          },
          .decode = [](ByteSpan bytes, std::span<const TensorPair> tensors,
                       TensorStates& states) -> Status {
            DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> file, DecompressFrame(bytes));
            return Decode(file, tensors, states, true);
          }};
}

}  // namespace dws::bench
