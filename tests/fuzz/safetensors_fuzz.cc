// Arbitrary bytes as a safetensors file, as the JSON of one, and as a checkpoint's index. They are
// refused, or every tensor is inside the file, each byte belongs to one tensor, and writing and
// reading them again gives the same.
#include <algorithm>
#include <set>

#include "common/base/check.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/safetensors/header.h"
#include "common/model/limits.h"
#include "tests/fuzz/fuzz_input.h"

namespace dws::fuzz {
namespace {

constexpr uint16_t kContentBytesMax = 4096;

// Checks that a refusal has the status of damaged data and names the input.
void CheckRefusal(const Status& status) {
  DWS_CHECK(absl::IsDataLoss(status) || absl::IsResourceExhausted(status));
  DWS_CHECK(Message(status).find("input") != std::string_view::npos);
}

void CheckTensors(const safetensors::Header& header, ByteSpan file) {
  std::set<std::string> names;
  uint64_t next = 0;
  for (const safetensors::HeaderTensor& tensor : header.tensors) {
    DWS_CHECK(names.insert(tensor.name).second);
    DWS_CHECK(tensor.name.size() <= limits::kTensorNameBytesMax);
    DWS_CHECK(tensor.shape.size() <= limits::kTensorRankMax);
    DWS_CHECK(tensor.begin == next && tensor.end >= tensor.begin);
    DWS_CHECK(*safetensors::TensorBytes(tensor.dtype, tensor.shape) == tensor.size_bytes());
    const ByteSpan bytes = header.BytesOf(tensor, file);
    DWS_CHECK(bytes.size() == tensor.size_bytes() && bytes.data() >= file.data());
    DWS_CHECK(bytes.data() + bytes.size() <= file.data() + file.size());
    next = tensor.end;
  }
  DWS_CHECK(header.content_offset + next == file.size());
}

// Writes the tensors of an accepted file and reads them again.
void WriteAgain(const safetensors::Header& header, ByteSpan file) {
  std::vector<safetensors::TensorBytesView> views;
  for (const safetensors::HeaderTensor& tensor : header.tensors) {
    views.push_back({.name = tensor.name,
                     .dtype = tensor.dtype,
                     .shape = tensor.shape,
                     .bytes = header.BytesOf(tensor, file)});
  }
  const auto made = safetensors::MakeFile(header.metadata, views);
  DWS_CHECK(made.ok());
  const auto again = safetensors::ParseHeader(*made, "a file of ours");
  DWS_CHECK(again.ok() && again->metadata == header.metadata);
  DWS_CHECK(again->tensors.size() == views.size());
  for (const safetensors::HeaderTensor& tensor : again->tensors) {
    const auto view = std::find_if(views.begin(), views.end(),
                                   [&](const auto& other) { return other.name == tensor.name; });
    DWS_CHECK(view != views.end() && view->dtype == tensor.dtype && view->shape == tensor.shape);
    const ByteSpan bytes = again->BytesOf(tensor, *made);
    DWS_CHECK(std::equal(bytes.begin(), bytes.end(), view->bytes.begin(), view->bytes.end()));
  }
}

void ParseFile(ByteSpan file) {
  const auto header = safetensors::ParseHeader(file, "input");
  if (!header.ok()) return CheckRefusal(header.status());
  CheckTensors(*header, file);
  WriteAgain(*header, file);
}

// A file of the JSON's length, the JSON, and as many bytes as the input says.
void ParseJson(FuzzInput input) {
  const size_t content_bytes = input.Take<uint16_t>() % kContentBytesMax;
  Bytes file(sizeof(uint64_t));
  StoreLe<uint64_t>(file.data(), input.rest().size());
  file.insert(file.end(), input.rest().begin(), input.rest().end());
  for (size_t i = 0; i < content_bytes; ++i) file.push_back(static_cast<std::byte>(i));
  ParseFile(file);
}

void ParseIndex(std::string_view text) {
  auto index = safetensors::ParseIndex(text, "input");
  if (!index.ok()) return CheckRefusal(index.status());
  for (const auto& [name, file] : index->weight_map) {
    DWS_CHECK(name.size() <= limits::kTensorNameBytesMax);
    DWS_CHECK(safetensors::IsShardName(file) && file.find('/') == std::string::npos);
    const auto shard = safetensors::ParseShardName(file);
    if (shard.has_value()) {
      const auto again = safetensors::ParseShardName(safetensors::MakeShardName(*shard));
      DWS_CHECK(again.has_value() && again->number == shard->number);
      DWS_CHECK(again->total == shard->total);
    }
  }
  for (const std::string& key : index->other_metadata) DWS_CHECK(!index->metadata.contains(key));
  const auto made = safetensors::MakeIndex(*index);
  DWS_CHECK(made.ok());
  const auto again = safetensors::ParseIndex(*made, "an index of ours");
  DWS_CHECK(again.ok() && again->metadata == index->metadata && again->other_metadata.empty());
  DWS_CHECK(again->weight_map == index->weight_map);
}

void Run(FuzzInput input) {
  switch (input.Take<uint8_t>() % 3) {
    case 0:
      return ParseFile(input.rest());
    case 1:
      return ParseJson(input);
    default:
      return ParseIndex(AsText(input.rest()));
  }
}

}  // namespace
}  // namespace dws::fuzz

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size) {
  dws::fuzz::Run({bytes, size});
  return 0;
}
