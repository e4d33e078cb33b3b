#include "tests/data/trace_excerpt.h"

#include <fstream>
#include <iterator>
#include <nlohmann/json.hpp>
#include <string>

#include "common/base/check.h"
#include "common/delta/bits/checksum.h"
#include "common/delta/bits/compression.h"

namespace dws::samples {
namespace {

std::string ReadFile(const std::string& name) {
  std::ifstream stream("tests/data/rl_trace_excerpt/" + name, std::ios::binary);
  DWS_CHECK(stream.is_open());
  return {std::istreambuf_iterator<char>(stream), std::istreambuf_iterator<char>()};
}

RankLayout LayoutOf(const nlohmann::json& tensors) {
  std::vector<Shard> shards;
  for (const nlohmann::json& tensor : tensors) {
    DWS_CHECK(tensor.at("dtype") == "BF16");
    Shard& shard = shards.emplace_back();
    shard.tensor.name = tensor.at("name");
    shard.tensor.dtype = DType::kBF16;
    shard.tensor.shape = tensor.at("shape").get<std::vector<uint64_t>>();
  }
  Result<RankLayout> layout = RankLayout::Create(std::move(shards));
  DWS_CHECK(layout.ok());
  return *std::move(layout);
}

}  // namespace

TraceExcerpt ReadTraceExcerpt() {
  const nlohmann::json description = nlohmann::json::parse(ReadFile("layout.json"));
  TraceExcerpt excerpt;
  excerpt.layout = LayoutOf(description.at("tensors"));
  Bytes weights(excerpt.layout.size_bytes());
  for (const nlohmann::json& step : description.at("steps")) {
    Bytes difference(weights.size());  // the first step is one from zeros
    DWS_CHECK(Decompress(AsBytes(ReadFile(step.at("file"))), difference).ok());
    for (size_t i = 0; i < weights.size(); ++i) weights[i] ^= difference[i];
    DWS_CHECK(fmt::format("{:016x}", Checksum(weights)) == step.at("xxh3"));
    State state;
    size_t offset = 0;
    for (const RankLayout::SliceEntry& slice : excerpt.layout.slices()) {
      const ByteSpan bytes = ByteSpan(weights).subspan(offset, slice.size_bytes());
      state.emplace_back(bytes.begin(), bytes.end());
      offset += slice.size_bytes();
    }
    excerpt.steps.push_back(step.at("step"));
    excerpt.states.push_back(std::move(state));
  }
  return excerpt;
}

}  // namespace dws::samples
