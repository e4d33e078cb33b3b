// Valid and invalid safetensors files written by hand, and reading and writing files in tests.
#pragma once

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <random>
#include <string>
#include <vector>

#include "common/base/bytes.h"

namespace dws::testing {

using Bytes = std::vector<std::byte>;

// u64 size of `json`, `json`, and `content_bytes` bytes that count up.
inline Bytes RawFile(const std::string& json, size_t content_bytes) {
  Bytes file(8 + json.size() + content_bytes);
  StoreLe<uint64_t>(file.data(), json.size());
  std::memcpy(file.data() + 8, json.data(), json.size());
  for (size_t i = 0; i < content_bytes; ++i) file[8 + json.size() + i] = std::byte(i & 0xFF);
  return file;
}

inline void WriteFile(const std::string& path, ByteSpan bytes) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream file(path, std::ios::binary);
  file.write(reinterpret_cast<const char*>(bytes.data()),
             static_cast<std::streamsize>(bytes.size()));
  REQUIRE(file.good());
}

inline void WriteText(const std::string& path, const std::string& text) {
  WriteFile(path, AsBytes(text));
}

inline Bytes ReadFile(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string text{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

inline Bytes RandomBytes(std::mt19937_64& random, size_t size) {
  Bytes bytes(size);
  for (std::byte& byte : bytes) byte = std::byte(random() & 0xFF);
  return bytes;
}

}  // namespace dws::testing
