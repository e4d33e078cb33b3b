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

// Changes about one element in `one_of` of each tensor but those named "frozen...", most by a small
// step; of "embed.weight" more of the small ones, so that its blocks are worth class-splitting. An
// empty tensor stays what it is.
void Train(TestModel& model, uint64_t one_of, uint64_t seed);

// Written by safetensors/writer.h; `shard_bytes_max` splits it. A folder, with a config.json.
void WriteFolder(const TestModel& model, const std::string& folder, uint64_t shard_bytes_max);
// One file.
void WriteSingle(const TestModel& model, const std::string& path);

// What Checkpoint reads there. Fails the test when it cannot.
TestModel ReadModel(const std::string& path);
std::string ReadText(const std::string& path);
bool operator==(const TestTensor& a, const TestTensor& b);

}  // namespace dws::checkpoint
