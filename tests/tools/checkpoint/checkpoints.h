// Small checkpoints on disk for tests: tensors of every dtype that safetensors has, random bytes.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/formats/safetensors/file_dtype.h"

namespace dws::checkpoint {

struct TestTensor {
  safetensors::FileDType dtype = safetensors::FileDType::kBF16;
  std::vector<uint64_t> shape;
  std::vector<std::byte> bytes;
};
using TestModel = std::map<std::string, TestTensor>;  // by name

TestTensor RandomTensor(safetensors::FileDType dtype, std::vector<uint64_t> shape, uint64_t seed);

// A tensor of each dtype, two of several blocks, a scalar and an empty one.
TestModel RandomModel(uint64_t seed);

// Changes about one element in `one_of` of each tensor except those named "frozen...", most by a
// small step. In "embed.weight" small weights change more often, so that class-splitting its blocks
// saves bytes. An empty tensor does not change.
void Train(TestModel& model, uint64_t one_of, uint64_t seed);

// Writes a folder with safetensors/writer.h, split by `shard_bytes_max`, and a config.json.
void WriteFolder(const TestModel& model, const std::string& folder, uint64_t shard_bytes_max);
// Writes one file.
void WriteSingle(const TestModel& model, const std::string& path);

// Reads with Checkpoint. Fails the test on an error.
TestModel ReadModel(const std::string& path);
std::string ReadText(const std::string& path);
bool operator==(const TestTensor& a, const TestTensor& b);

}  // namespace dws::checkpoint
