// rank0000_flush000000.safetensors: __positions__ (bytes), __values__ (elements), and in the
// metadata the place of each parameter in both. Positions are int32 numbers of elements
// ("indices"), or gaps of 16 bits, 32 for a parameter with a longer one ("deltas"); "deltas_zstd"
// wraps that file.
#include <algorithm>
#include <cstring>
#include <limits>
#include <map>
#include <nlohmann/json.hpp>

#include "common/formats/safetensors/header.h"
#include "common/formats/slime_delta/payload.h"
#include "tools/bench/peers/peer.h"
#include "tools/bench/peers/zstd_frame.h"

namespace dws::bench {
namespace {

enum class FlushEncoding : uint8_t { kIndices, kDeltas, kDeltasZstd };

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

// The positions of `param` begin at `positions`: numbers of elements, or gaps between them.
Status Apply(const nlohmann::json& param, ByteSpan positions, ByteSpan values, bool gaps,
             MutableByteSpan state) {
  const size_t width = param["pos_width"];
  const size_t value_width = ElementBytes(DType::kBF16);
  const size_t begin = param["val_start"];
  const size_t count = param["val_end"].get<size_t>() - begin;
  if (positions.size() < count * width || values.size() < (begin + count) * value_width) {
    return DataLossError("'{}' reaches outside its file", param["name"].get<std::string>());
  }
  const std::byte* value = values.data() + begin * value_width;
  uint64_t next = 0;  // the element that a gap of 0 means
  for (size_t i = 0; i < count; ++i, value += value_width) {
    const std::byte* const from = positions.data() + i * width;
    const uint64_t number = width == 2 ? LoadLe<uint16_t>(from) : LoadLe<uint32_t>(from);
    const uint64_t element = gaps ? next + number : number;
    if (element >= state.size() / value_width) return DataLossError("element {}", element);
    std::memcpy(state.data() + element * value_width, value, value_width);
    next = element + 1;
  }
  return OkStatus();
}

// Reads what Encode has written, and no file of others.
Status Decode(ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states,
              FlushEncoding encoding) {
  std::vector<std::byte> content;
  if (encoding == FlushEncoding::kDeltasZstd) {
    DWS_ASSIGN_OR_RETURN(content, DecompressFrame(bytes));
    bytes = content;
  }
  DWS_ASSIGN_OR_RETURN(const safetensors::Header header, safetensors::ParseHeader(bytes, "flush"));
  std::map<std::string_view, ByteSpan> columns;
  for (const safetensors::HeaderTensor& tensor : header.tensors) {
    columns[tensor.name] = header.BytesOf(tensor, bytes);
  }
  for (const nlohmann::json& param : nlohmann::json::parse(header.metadata.at("params"))) {
    const std::string name = param["name"];
    const auto found = std::find_if(tensors.begin(), tensors.end(), [&](const TensorPair& tensor) {
      return tensor.spec.name == name;
    });
    if (found == tensors.end()) return DataLossError("there is no tensor '{}'", name);
    DWS_RETURN_IF_ERROR(Apply(param, columns["__positions__"].subspan(param["pos_start"]),
                              columns["__values__"], encoding != FlushEncoding::kIndices,
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
          .bar = AtLeast(3.1),
          .encode = [](std::span<const TensorPair> tensors) -> Result<std::vector<std::byte>> {
            DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> file,
                                 Encode(tensors, FlushEncoding::kDeltas));
            return slime::CompressEntry(file);
          },
          .decode = [](ByteSpan bytes, std::span<const TensorPair> tensors, TensorStates& states)
              -> Status { return Decode(bytes, tensors, states, FlushEncoding::kDeltasZstd); }};
}

}  // namespace dws::bench
