// The first inputs of a corpus, built and written as files. Used by make_seeds.
#pragma once

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <string>
#include <vector>

#include "common/base/bytes.h"

namespace dws::fuzz {

// The inputs of one target, in DIRECTORY/<target>. Threads: one at a time.
class Seeds {
 public:
  Seeds(const std::string& directory, const std::string& target)
      : folder_(directory + "/" + target) {
    std::filesystem::create_directories(folder_);
  }
  void Add(const std::vector<std::byte>& input) {
    std::ofstream file(fmt::format("{}/{:04}", folder_, count_++), std::ios::binary);
    file.write(reinterpret_cast<const char*>(input.data()),
               static_cast<std::streamsize>(input.size()));
  }

 private:
  std::string folder_;
  int count_ = 0;
};

template <typename T>
void Put(std::vector<std::byte>& input, T value) {
  input.resize(input.size() + sizeof(T));
  StoreLe(input.data() + input.size() - sizeof(T), value);
}

inline void Append(std::vector<std::byte>& input, ByteSpan bytes) {
  input.insert(input.end(), bytes.begin(), bytes.end());
}

}  // namespace dws::fuzz
