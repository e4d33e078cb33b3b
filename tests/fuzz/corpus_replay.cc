// Runs a fuzz target over its committed corpus as an ordinary test, with any compiler.
#include <catch2/catch.hpp>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>
#include <vector>

#include "common/base/bytes.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* bytes, size_t size);

namespace dws::fuzz {
namespace {

// u32 size and bytes of each input (tests/fuzz/corpus.py).
std::vector<std::vector<uint8_t>> ReadCorpus(const std::string& path) {
  std::ifstream stream(path, std::ios::binary);
  const std::string pack{std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
  std::vector<std::vector<uint8_t>> inputs;
  ByteSpan rest = AsBytes(pack);
  while (!rest.empty()) {
    REQUIRE(rest.size() >= 4);
    const auto size = LoadLe<uint32_t>(rest.data());
    REQUIRE(size <= rest.size() - 4);
    const auto* begin = reinterpret_cast<const uint8_t*>(rest.data() + 4);
    inputs.emplace_back(begin, begin + size);
    rest = rest.subspan(4 + size);
  }
  return inputs;
}

}  // namespace

TEST_CASE("every input of the corpus passes the fuzz target", "[fuzz]") {
  const auto inputs = ReadCorpus(DWS_FUZZ_CORPUS);
  REQUIRE(inputs.size() > 20);
  for (size_t i = 0; i < inputs.size(); ++i) {
    INFO("input " << i << " of " << DWS_FUZZ_CORPUS);
    REQUIRE(LLVMFuzzerTestOneInput(inputs[i].data(), inputs[i].size()) == 0);
  }
}

TEST_CASE("an empty input and one byte pass the fuzz target", "[fuzz]") {
  REQUIRE(LLVMFuzzerTestOneInput(nullptr, 0) == 0);
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const auto input = static_cast<uint8_t>(byte);
    REQUIRE(LLVMFuzzerTestOneInput(&input, 1) == 0);
  }
}

}  // namespace dws::fuzz
