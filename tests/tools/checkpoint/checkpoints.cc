#include "tests/tools/checkpoint/checkpoints.h"

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>

#include "common/base/check.h"
#include "common/base/file_system.h"
#include "common/formats/safetensors/checkpoint.h"
#include "tests/common/formats/write_checkpoint.h"

namespace dws::checkpoint {
namespace {

using safetensors::FileDType;
using safetensors::HeaderTensor;

std::vector<HeaderTensor> Headers(const TestModel& model) {
  std::vector<HeaderTensor> tensors;
  for (const auto& [name, tensor] : model) {
    tensors.push_back({.name = name, .dtype = tensor.dtype, .shape = tensor.shape});
  }
  return tensors;
}

safetensors::TensorSource SourceOf(const TestModel& model) {
  return [&model](const HeaderTensor& tensor) -> Result<ByteSpan> {
    return ByteSpan(model.at(tensor.name).bytes);
  };
}

// Like an optimiser: the larger a weight, the less likely it changes, by one ulp.
void TrainByMagnitude(TestTensor& tensor, uint64_t one_of, std::mt19937_64& random) {
  for (size_t i = 0; i < tensor.bytes.size(); i += 2) {
    const auto bits = LoadLe<uint16_t>(tensor.bytes.data() + i);
    const uint32_t exponent = (bits >> 7) % 8;
    if (random() % (one_of << exponent) >= 4) continue;
    StoreLe<uint16_t>(tensor.bytes.data() + i,
                      static_cast<uint16_t>(random() % 2 == 0 ? bits + 1 : bits - 1));
  }
}

}  // namespace

TestTensor RandomTensor(FileDType dtype, std::vector<uint64_t> shape, uint64_t seed) {
  TestTensor tensor{.dtype = dtype, .shape = std::move(shape)};
  const auto size_bytes = safetensors::TensorBytes(dtype, tensor.shape);
  DWS_CHECK(size_bytes.ok());
  std::mt19937_64 random(seed);
  tensor.bytes.resize(*size_bytes);
  for (std::byte& byte : tensor.bytes) byte = static_cast<std::byte>(random());
  return tensor;
}

TestModel RandomModel(uint64_t seed) {
  TestModel model;
  for (uint32_t i = 0; i < safetensors::kFileDTypeCount; ++i) {
    const auto dtype = static_cast<FileDType>(i);
    model[fmt::format("layers.{}.{}", i, safetensors::NameOf(dtype))] =
        RandomTensor(dtype, {7 + i, 24}, seed * 100 + i);
  }
  model["embed.weight"] = RandomTensor(FileDType::kBF16, {300, 700}, seed * 100 + 50);
  for (size_t i = 0; i < model["embed.weight"].bytes.size(); i += 2) {
    // Gives it a magnitude of 2^-15 to 2^-8: sign and mantissa stay random.
    std::byte* const at = model["embed.weight"].bytes.data() + i;
    const auto bits = LoadLe<uint16_t>(at);
    StoreLe<uint16_t>(at, static_cast<uint16_t>((bits & 0x807F) | ((112 + (bits >> 8) % 8) << 7)));
  }
  model["frozen.weight"] = RandomTensor(FileDType::kF16, {90, 10}, seed * 100 + 51);
  model["head.weight"] = RandomTensor(FileDType::kF32, {400, 333}, seed * 100 + 52);
  model["scale"] = RandomTensor(FileDType::kF32, {}, seed * 100 + 53);
  model["empty"] = RandomTensor(FileDType::kBF16, {0, 16}, seed);
  model["deep"] = RandomTensor(FileDType::kBF16, {1, 2, 1, 2, 1, 2, 1, 2}, seed * 100 + 54);
  return model;
}

void Train(TestModel& model, uint64_t one_of, uint64_t seed) {
  std::mt19937_64 random(seed);
  for (auto& [name, tensor] : model) {
    if (name.rfind("frozen", 0) == 0 || tensor.bytes.empty()) continue;
    if (name == "embed.weight") {
      TrainByMagnitude(tensor, one_of, random);
      continue;
    }
    const size_t width = std::max<size_t>(safetensors::ElementBits(tensor.dtype) / 8, 1);
    const size_t elements = tensor.bytes.size() / width;
    const size_t changes = std::max<size_t>(elements / one_of, 1);
    for (size_t i = 0; i < changes; ++i) {
      std::byte* const element = tensor.bytes.data() + (random() % elements) * width;
      // Often only the lowest bits, which are in the first byte of a little-endian element.
      element[random() % 8 == 0 ? width - 1 : 0] ^= static_cast<std::byte>(1 + random() % 3);
    }
  }
}

void WriteFolder(const TestModel& model, const std::string& folder, uint64_t shard_bytes_max) {
  PosixFileSystem files;
  const Status written = safetensors::WriteCheckpoint(
      files, folder, Headers(model), SourceOf(model),
      {.metadata = {{"format", "pt"}, {"note", "kept"}}, .shard_bytes_max = shard_bytes_max});
  DWS_CHECK(written.ok());
  std::ofstream(folder + "/config.json") << "{\"model_type\": \"test\"}\n";
}

void WriteSingle(const TestModel& model, const std::string& path) {
  PosixFileSystem files;
  DWS_CHECK(
      safetensors::WriteTensorFile(files, path, {{"format", "pt"}}, Headers(model), SourceOf(model))
          .ok());
}

TestModel ReadModel(const std::string& path) {
  const auto checkpoint = safetensors::Checkpoint::Open(path);
  DWS_CHECK(checkpoint.ok());
  TestModel model;
  for (const safetensors::CheckpointTensor& tensor : checkpoint->tensors()) {
    model[tensor.name] = {.dtype = tensor.dtype,
                          .shape = tensor.shape,
                          .bytes = {tensor.bytes.begin(), tensor.bytes.end()}};
  }
  return model;
}

std::string ReadText(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  DWS_CHECK(stream.is_open());
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

bool operator==(const TestTensor& a, const TestTensor& b) {
  return a.dtype == b.dtype && a.shape == b.shape && a.bytes == b.bytes;
}

}  // namespace dws::checkpoint
