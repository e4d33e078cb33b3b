#include "common/formats/safetensors/header.h"

#include <algorithm>
#include <limits>
#include <optional>
#include <utility>

#include "common/formats/strict_json.h"
#include "common/model/limits.h"

namespace dws::safetensors {
namespace {

constexpr const char* kMetadataKey = "__metadata__";

Result<std::vector<uint64_t>> WholeNumbers(const nlohmann::json& array, const std::string& what) {
  if (!array.is_array()) return DataLossError("{}: expected a list of whole numbers", what);
  std::vector<uint64_t> numbers;
  for (const nlohmann::json& value : array) {
    const std::optional<uint64_t> number = WholeNumber(value);
    if (!number.has_value()) {
      return DataLossError("{}: expected a list of whole numbers, found {} in it", what,
                           value.is_number() ? "another number" : value.type_name());
    }
    numbers.push_back(*number);
  }
  return numbers;
}

Status CheckName(const std::string& name, const std::string& what) {
  if (name.size() <= limits::kTensorNameBytesMax) return OkStatus();
  return ResourceExhaustedError("{}: a tensor's name has {} bytes, at most {} are allowed", what,
                                name.size(), limits::kTensorNameBytesMax);
}

// Checks one tensor's entry alone. CheckOffsets checks its place among the others.
Result<HeaderTensor> ParseTensor(const std::string& name, const nlohmann::json& entry,
                                 const std::string& file) {
  DWS_RETURN_IF_ERROR(CheckName(name, file));
  const std::string what = fmt::format("{}: tensor '{}'", file, name);
  if (!entry.is_object()) return DataLossError("{}: expected an object", what);
  for (const char* const member : {"dtype", "shape", "data_offsets"}) {
    if (!entry.contains(member)) return DataLossError("{}: has no {}", what, member);
  }
  if (entry.size() != 3) {
    return DataLossError("{}: expected only dtype, shape and data_offsets, found {} members", what,
                         entry.size());
  }
  if (!entry["dtype"].is_string()) return DataLossError("{}: its dtype is not a string", what);
  const auto dtype_name = entry["dtype"].get<std::string>();
  const std::optional<FileDType> dtype = FileDTypeNamed(dtype_name);
  if (!dtype.has_value()) return DataLossError("{}: unknown dtype '{}'", what, dtype_name);
  HeaderTensor tensor{.name = name, .dtype = *dtype};
  DWS_ASSIGN_OR_RETURN(tensor.shape, WholeNumbers(entry["shape"], what + ", shape"));
  if (tensor.shape.size() > limits::kTensorRankMax) {
    return ResourceExhaustedError("{}: {} dimensions, at most {} are allowed", what,
                                  tensor.shape.size(), limits::kTensorRankMax);
  }
  DWS_ASSIGN_OR_RETURN(const std::vector<uint64_t> offsets,
                       WholeNumbers(entry["data_offsets"], what + ", data_offsets"));
  if (offsets.size() != 2) {
    return DataLossError("{}: expected two data_offsets, found {}", what, offsets.size());
  }
  if (offsets[0] > offsets[1]) {
    return DataLossError("{}: its data_offsets {} and {} are not in order", what, offsets[0],
                         offsets[1]);
  }
  tensor.begin = offsets[0];
  tensor.end = offsets[1];
  const Result<uint64_t> size_bytes = TensorBytes(tensor.dtype, tensor.shape);
  if (absl::IsResourceExhausted(size_bytes.status())) return Annotate(size_bytes.status(), what);
  if (!size_bytes.ok()) return DataLossError("{}: {}", what, Message(size_bytes.status()));
  if (*size_bytes != tensor.size_bytes()) {
    return DataLossError("{}: {} [{}] has {} bytes, its data_offsets hold {}", what, dtype_name,
                         fmt::join(tensor.shape, ", "), *size_bytes, tensor.size_bytes());
  }
  return tensor;
}

// Every byte of the content belongs to exactly one tensor.
Status CheckOffsets(std::vector<HeaderTensor>& tensors, uint64_t content_bytes,
                    const std::string& what) {
  std::sort(tensors.begin(), tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  uint64_t next = 0;
  for (const HeaderTensor& tensor : tensors) {
    if (tensor.begin > next) {
      return DataLossError("{}: a hole of {} bytes before tensor '{}'", what, tensor.begin - next,
                           tensor.name);
    }
    if (tensor.begin < next) {
      return DataLossError("{}: tensor '{}' begins at byte {}, inside the tensor before it", what,
                           tensor.name, tensor.begin);
    }
    next = tensor.end;
  }
  if (next > content_bytes) {
    return DataLossError("{}: its tensors have {} bytes, the file holds {}", what, next,
                         content_bytes);
  }
  if (next < content_bytes) {
    return DataLossError("{}: {} bytes after the last tensor", what, content_bytes - next);
  }
  return OkStatus();
}

// Checks the tensors, sorts them into the file's order, and sets their offsets.
Status PlaceTensors(std::vector<HeaderTensor>& tensors) {
  if (tensors.size() > limits::kTensorsMax) {
    return ResourceExhaustedError("{} tensors for one file, at most {} are allowed", tensors.size(),
                                  limits::kTensorsMax);
  }
  std::sort(tensors.begin(), tensors.end(), [](const HeaderTensor& a, const HeaderTensor& b) {
    return a.dtype != b.dtype ? a.dtype > b.dtype : a.name < b.name;
  });
  uint64_t next = 0;
  for (HeaderTensor& tensor : tensors) {
    DWS_RETURN_IF_ERROR(CheckName(tensor.name, "a new safetensors file"));
    if (tensor.name == kMetadataKey || !IsUtf8(tensor.name)) {
      return InvalidArgumentError("'{}' cannot be a tensor's name in a safetensors file",
                                  tensor.name == kMetadataKey ? kMetadataKey : "(not UTF-8)");
    }
    Result<uint64_t> size_bytes = TensorBytes(tensor.dtype, tensor.shape);
    if (!size_bytes.ok()) return Annotate(size_bytes.status(), "tensor '" + tensor.name + "'");
    if (*size_bytes > std::numeric_limits<uint64_t>::max() / 2 - next) {
      return ResourceExhaustedError("tensor '{}': the file would be too large", tensor.name);
    }
    tensor.begin = next;
    next += *size_bytes;
    tensor.end = next;
  }
  return OkStatus();
}

}  // namespace

Result<uint64_t> HeaderLength(ByteSpan start, uint64_t file_bytes, uint64_t header_bytes_max,
                              const std::string& what) {
  if (start.size() < kHeaderLengthBytes) {
    return DataLossError("{}: expected a safetensors file, found {} bytes", what, file_bytes);
  }
  const auto length = LoadLe<uint64_t>(start.data());
  if (length > limits::kSafetensorsHeaderBytesMax) {
    return DataLossError("{}: a header of {} bytes, at most {} are allowed", what, length,
                         limits::kSafetensorsHeaderBytesMax);
  }
  if (length > file_bytes - kHeaderLengthBytes) {
    return DataLossError("{}: a header of {} bytes in a file of {}", what, length, file_bytes);
  }
  if (length > header_bytes_max) {
    return ResourceExhaustedError(
        "{}: a header of {} bytes; the checkpoint that it is for needs at most {}", what, length,
        header_bytes_max);
  }
  return length;
}

Result<Header> ParseHeaderText(std::string_view text, uint64_t file_bytes,
                               const std::function<Status(const HeaderTensor&)>& check_tensor,
                               const std::string& what) {
  if (text.empty() || text.front() != '{') {
    return DataLossError("{}: its header does not begin with '{{'", what);
  }
  Header header;
  header.content_offset = kHeaderLengthBytes + text.size();
  const auto on_member = [&](const std::string& parent, const std::string& key,
                             nlohmann::json value) -> Status {
    const size_t count = parent.empty() ? header.tensors.size() : header.metadata.size();
    if (count >= limits::kTensorsMax && key != kMetadataKey) {
      return ResourceExhaustedError("{}: more than the {} tensors or members of metadata allowed",
                                    what, limits::kTensorsMax);
    }
    if (!parent.empty()) return AddString(header.metadata, key, value, what + ", __metadata__");
    if (key == kMetadataKey) {
      if (value.is_object()) return OkStatus();  // its members have been added
      return DataLossError("{}, __metadata__: expected an object of strings", what);
    }
    DWS_ASSIGN_OR_RETURN(HeaderTensor tensor, ParseTensor(key, value, what));
    if (check_tensor != nullptr) DWS_RETURN_IF_ERROR(check_tensor(tensor));
    header.tensors.push_back(std::move(tensor));
    return OkStatus();
  };
  DWS_RETURN_IF_ERROR(
      ReadStrictMembers(text, what + ", header",
                        {.opens = [](const std::string& key) { return key == kMetadataKey; },
                         .on_member = on_member}));
  DWS_RETURN_IF_ERROR(CheckOffsets(header.tensors, file_bytes - header.content_offset, what));
  return header;
}

Result<Header> ParseHeader(ByteSpan file, const std::string& what) {
  DWS_ASSIGN_OR_RETURN(const uint64_t length,
                       HeaderLength(file.first(std::min<size_t>(file.size(), kHeaderLengthBytes)),
                                    file.size(), limits::kSafetensorsHeaderBytesMax, what));
  return ParseHeaderText(AsText(file.subspan(kHeaderLengthBytes, length)), file.size(), nullptr,
                         what);
}

Result<NewHeader> MakeHeader(const Metadata& metadata, std::vector<HeaderTensor> tensors) {
  DWS_RETURN_IF_ERROR(PlaceTensors(tensors));
  nlohmann::ordered_json root = nlohmann::ordered_json::object();
  for (const auto& [key, value] : metadata) {
    if (!IsUtf8(key) || !IsUtf8(value)) return InvalidArgumentError("metadata that is not UTF-8");
  }
  if (!metadata.empty()) root[kMetadataKey] = metadata;
  // push_back instead of []: an ordered_json searches for each key from its front.
  auto& members = root.get_ref<nlohmann::ordered_json::object_t&>();
  std::vector<std::string_view> names;
  for (const HeaderTensor& tensor : tensors) {
    names.push_back(tensor.name);
    nlohmann::ordered_json entry = {{"dtype", std::string(NameOf(tensor.dtype))},
                                    {"shape", tensor.shape},
                                    {"data_offsets", {tensor.begin, tensor.end}}};
    members.push_back({tensor.name, std::move(entry)});
  }
  std::sort(names.begin(), names.end());
  const auto twice = std::adjacent_find(names.begin(), names.end());
  if (twice != names.end()) return InvalidArgumentError("two tensors are named '{}'", *twice);
  std::string text = root.dump();
  text.append((8 - text.size() % 8) % 8, ' ');
  if (text.size() > limits::kSafetensorsHeaderBytesMax) {
    return ResourceExhaustedError("a header of {} bytes, at most {} are allowed", text.size(),
                                  limits::kSafetensorsHeaderBytesMax);
  }
  NewHeader made;
  made.header = {.metadata = metadata,
                 .tensors = std::move(tensors),
                 .content_offset = kHeaderLengthBytes + text.size()};
  made.bytes.resize(made.header.content_offset);
  StoreLe<uint64_t>(made.bytes.data(), text.size());
  std::memcpy(made.bytes.data() + kHeaderLengthBytes, text.data(), text.size());
  return made;
}

Result<std::vector<std::byte>> MakeFile(const Metadata& metadata,
                                        std::span<const TensorBytesView> tensors) {
  std::map<std::string_view, ByteSpan> bytes_of;
  std::vector<HeaderTensor> entries;
  for (const TensorBytesView& tensor : tensors) {
    entries.push_back({.name = tensor.name, .dtype = tensor.dtype, .shape = tensor.shape});
    bytes_of[tensor.name] = tensor.bytes;
  }
  DWS_ASSIGN_OR_RETURN(NewHeader made, MakeHeader(metadata, std::move(entries)));
  std::vector<std::byte> file = std::move(made.bytes);
  for (const HeaderTensor& tensor : made.header.tensors) {
    const ByteSpan bytes = bytes_of[tensor.name];
    if (bytes.size() != tensor.size_bytes()) {
      return InvalidArgumentError("tensor '{}': {} bytes, its shape has {}", tensor.name,
                                  bytes.size(), tensor.size_bytes());
    }
    file.insert(file.end(), bytes.begin(), bytes.end());
  }
  return file;
}

}  // namespace dws::safetensors
