#include "common/formats/slime_delta/format_a.h"

#include <zstd.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <utility>

#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/safetensors/header.h"
#include "common/formats/strict_json.h"
#include "common/model/limits.h"

namespace dws::slime {
namespace {

using safetensors::FileDType;
using safetensors::Header;
using safetensors::HeaderTensor;

constexpr std::array<std::pair<std::string_view, FileDType>, 12> kTorchNames = {{
    {"bfloat16", FileDType::kBF16},
    {"float16", FileDType::kF16},
    {"float32", FileDType::kF32},
    {"float64", FileDType::kF64},
    {"float8_e4m3fn", FileDType::kF8E4M3},
    {"float8_e5m2", FileDType::kF8E5M2},
    {"int8", FileDType::kI8},
    {"uint8", FileDType::kU8},
    {"int16", FileDType::kI16},
    {"int32", FileDType::kI32},
    {"int64", FileDType::kI64},
    {"bool", FileDType::kBool},
}};

std::optional<FileDType> TorchDType(std::string_view name) {
  constexpr std::string_view kPrefix = "torch.";
  if (name.starts_with(kPrefix)) name.remove_prefix(kPrefix.size());
  for (const auto& [torch_name, dtype] : kTorchNames) {
    if (torch_name == name) return dtype;
  }
  return std::nullopt;
}

bool IsZstd(ByteSpan file) {
  return file.size() >= 4 && LoadLe<uint32_t>(file.data()) == ZSTD_MAGICNUMBER;
}

Result<std::vector<std::byte>> Decompress(ByteSpan file, const std::string& what) {
  const unsigned long long size = ZSTD_getFrameContentSize(file.data(), file.size());
  if (size == ZSTD_CONTENTSIZE_ERROR || size == ZSTD_CONTENTSIZE_UNKNOWN) {
    return DataLossError("{}: expected a zstd frame that states its content size", what);
  }
  // Limit the size to what zstd can produce from so many bytes: a block of 128 KiB takes at least
  // 3.
  if (size > limits::kSlimeFlushBytesMax || size / (128 << 10) > file.size()) {
    return ResourceExhaustedError("{}: {} bytes that state to be {}", what, file.size(), size);
  }
  std::vector<std::byte> content(size);
  const size_t got = ZSTD_decompress(content.data(), content.size(), file.data(), file.size());
  if (ZSTD_isError(got) != 0 || got != size) {
    return DataLossError("{}: a damaged zstd frame", what);
  }
  return content;
}

// The positions and values of one file.
struct Columns {
  ByteSpan positions;
  ByteSpan values;
  FileDType value_dtype = FileDType::kBF16;
};

Result<Columns> FindColumns(const Header& header, ByteSpan file, const std::string& what) {
  Columns columns;
  bool has_positions = false;
  bool has_values = false;
  for (const HeaderTensor& tensor : header.tensors) {
    if (tensor.name == "__positions__" && tensor.dtype == FileDType::kU8) {
      columns.positions = header.BytesOf(tensor, file);
      has_positions = true;
    } else if (tensor.name == "__values__" && safetensors::ElementBits(tensor.dtype) >= 8) {
      columns.values = header.BytesOf(tensor, file);
      columns.value_dtype = tensor.dtype;
      has_values = true;
    } else {
      return DataLossError("{}: an unexpected tensor '{}' of {}", what, tensor.name,
                           safetensors::NameOf(tensor.dtype));
    }
  }
  if (!has_positions || !has_values) {
    return DataLossError("{}: expected __positions__ and __values__", what);
  }
  return columns;
}

Result<uint64_t> NumberOf(const nlohmann::json& param, const char* key, const std::string& what) {
  if (param.contains(key)) {
    if (const auto number = WholeNumber(param[key])) return *number;
  }
  return DataLossError("{}: expected a whole number as its {}", what, key);
}

// The part [begin, end) of `column`, in units of `unit_bytes`.
Result<ByteSpan> Part(ByteSpan column, uint64_t begin, uint64_t end, uint64_t unit_bytes,
                      const std::string& what) {
  const uint64_t units = column.size() / unit_bytes;
  if (begin > end || end > units) {
    return DataLossError("{}: {} to {} of {}", what, begin, end, units);
  }
  return column.subspan(begin * unit_bytes, (end - begin) * unit_bytes);
}

Result<FlushParam> ParseParam(const nlohmann::json& entry, const Columns& columns, bool gaps,
                              const std::string& file) {
  if (!entry.is_object() || !entry.contains("name") || !entry["name"].is_string()) {
    return DataLossError("{}: a parameter without a name", file);
  }
  FlushParam param{.name = entry["name"].get<std::string>()};
  const std::string what = fmt::format("{}: parameter '{}'", file, param.name);
  const auto dtype = entry.find("dtype");
  const std::optional<FileDType> known = dtype != entry.end() && dtype->is_string()
                                             ? TorchDType(dtype->get<std::string>())
                                             : std::nullopt;
  if (known != columns.value_dtype) {
    return DataLossError("{}: expected the dtype of its values, {}", what,
                         safetensors::NameOf(columns.value_dtype));
  }
  param.dtype = *known;
  if (!entry.contains("shape") || !entry["shape"].is_array()) {
    return DataLossError("{}: has no shape", what);
  }
  for (const nlohmann::json& size : entry["shape"]) {
    const std::optional<uint64_t> number = WholeNumber(size);
    if (!number.has_value() || param.shape.size() >= limits::kTensorRankMax) {
      return DataLossError("{}: expected a shape of at most {} whole numbers", what,
                           limits::kTensorRankMax);
    }
    param.shape.push_back(*number);
  }
  DWS_ASSIGN_OR_RETURN(const uint64_t width, NumberOf(entry, "pos_width", what));
  if (width != 4 && !(gaps && width == 2)) return DataLossError("{}: pos_width {}", what, width);
  param.position_bytes = static_cast<uint32_t>(width);
  DWS_ASSIGN_OR_RETURN(const uint64_t pos_start, NumberOf(entry, "pos_start", what));
  DWS_ASSIGN_OR_RETURN(const uint64_t pos_end, NumberOf(entry, "pos_end", what));
  DWS_ASSIGN_OR_RETURN(const uint64_t val_start, NumberOf(entry, "val_start", what));
  DWS_ASSIGN_OR_RETURN(const uint64_t val_end, NumberOf(entry, "val_end", what));
  DWS_ASSIGN_OR_RETURN(param.positions,
                       Part(columns.positions, pos_start, pos_end, 1, what + ", positions"));
  const uint64_t value_bytes = safetensors::ElementBits(param.dtype) / 8;
  DWS_ASSIGN_OR_RETURN(param.values,
                       Part(columns.values, val_start, val_end, value_bytes, what + ", values"));
  if (param.positions.size() % width != 0 ||
      param.positions.size() / width != param.values.size() / value_bytes) {
    return DataLossError("{}: {} bytes of positions for {} values", what, param.positions.size(),
                         param.values.size() / value_bytes);
  }
  return param;
}

Result<bool> HasGaps(const safetensors::Metadata& metadata, std::optional<FlushEncoding> encoding,
                     bool compressed, const std::string& what) {
  const auto stated = metadata.find("encoding");
  if (stated != metadata.end()) {
    const std::optional<FlushEncoding> known = FlushEncodingNamed(stated->second);
    if (!known.has_value() || (encoding.has_value() && *encoding != *known)) {
      return DataLossError("{}: an unexpected encoding '{}'", what, stated->second);
    }
    encoding = known;
  }
  if (!encoding.has_value()) return DataLossError("{}: its metadata has no encoding", what);
  if (compressed != (*encoding == FlushEncoding::kDeltasZstd)) {
    return DataLossError("{}: is {}compressed, its encoding says otherwise", what,
                         compressed ? "" : "not ");
  }
  return *encoding != FlushEncoding::kIndices;
}

// Calls fn(element) for each position, in order, until a call returns false.
template <typename Fn>
bool ForEachElement(const Flush& flush, const FlushParam& param, Fn&& fn) {
  uint64_t next = 0;  // the element that a gap of 0 means
  for (size_t at = 0; at < param.positions.size(); at += param.position_bytes) {
    const std::byte* const from = param.positions.data() + at;
    const uint64_t number =
        param.position_bytes == 2 ? LoadLe<uint16_t>(from) : LoadLe<uint32_t>(from);
    const uint64_t element = flush.gaps ? next + number : number;
    next = element + 1;
    if (!fn(element)) return false;
  }
  return true;
}

}  // namespace

std::optional<FlushEncoding> FlushEncodingNamed(std::string_view name) {
  if (name == "indices") return FlushEncoding::kIndices;
  if (name == "deltas") return FlushEncoding::kDeltas;
  if (name == "deltas_zstd") return FlushEncoding::kDeltasZstd;
  return std::nullopt;
}

Result<std::vector<std::string>> ListFlushes(FileSystem& files, const std::string& version_folder) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> names, files.List(version_folder));
  if (!std::binary_search(names.begin(), names.end(), "DONE")) {
    return UnavailableError("{} has no DONE: it is not published yet", version_folder);
  }
  std::vector<std::string> paths;
  for (const std::string& name : names) {
    if (safetensors::IsShardName(name) && name.starts_with("rank")) {
      paths.push_back(version_folder + "/" + name);
    }
  }
  return paths;
}

Result<Flush> ParseFlush(ByteSpan file, std::optional<FlushEncoding> encoding,
                         const std::string& what) {
  Flush flush;
  const bool compressed = IsZstd(file);
  if (compressed) {
    DWS_ASSIGN_OR_RETURN(flush.content, Decompress(file, what));
    file = flush.content;
  }
  DWS_ASSIGN_OR_RETURN(const Header header, safetensors::ParseHeader(file, what));
  DWS_ASSIGN_OR_RETURN(flush.gaps, HasGaps(header.metadata, encoding, compressed, what));
  DWS_ASSIGN_OR_RETURN(const Columns columns, FindColumns(header, file, what));
  const auto text = header.metadata.find("params");
  if (text == header.metadata.end()) return DataLossError("{}: its metadata has no params", what);
  DWS_ASSIGN_OR_RETURN(const nlohmann::json params,
                       ParseStrictJson(text->second, what + ", params"));
  if (!params.is_array() || params.size() > limits::kTensorsMax) {
    return DataLossError("{}: expected a list of at most {} parameters", what, limits::kTensorsMax);
  }
  for (const nlohmann::json& entry : params) {
    DWS_ASSIGN_OR_RETURN(FlushParam param, ParseParam(entry, columns, flush.gaps, what));
    flush.params.push_back(std::move(param));
  }
  return flush;
}

Status ApplyFlushParam(const Flush& flush, const FlushParam& param, MutableByteSpan tensor) {
  const uint64_t width = safetensors::ElementBits(param.dtype) / 8;
  DWS_ASSIGN_OR_RETURN(const uint64_t size_bytes,
                       safetensors::TensorBytes(param.dtype, param.shape));
  if (size_bytes != tensor.size()) {
    return DataLossError("parameter '{}' has {} bytes, the tensor {}", param.name, size_bytes,
                         tensor.size());
  }
  uint64_t outside = 0;
  const bool inside = ForEachElement(flush, param, [&](uint64_t element) {
    outside = element;
    return element < tensor.size() / width;
  });
  if (!inside) {
    return DataLossError("parameter '{}': element {} of {}", param.name, outside,
                         tensor.size() / width);
  }
  const std::byte* value = param.values.data();
  ForEachElement(flush, param, [&](uint64_t element) {
    std::memcpy(tensor.data() + element * width, value, width);
    value += width;
    return true;
  });
  return OkStatus();
}

}  // namespace dws::slime
