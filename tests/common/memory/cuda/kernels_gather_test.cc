// The gather kernel: live blocks of any layout, in slice order.
#include <catch2/catch.hpp>

#include "tests/common/memory/cuda/live_slice.h"

namespace dws::cuda {
namespace {

using samples::Bytes;
using samples::Random;

// Consecutive blocks of one slice, each to a target of its own. The first begins at
// `first_element`.
struct GatherCase {
  Bytes slice;
  uint32_t element_bytes = 1;
  uint64_t first_element = 0;
  std::vector<uint32_t> elements;
};

void CheckGather(KernelRunner& runner, Random& random, const GatherCase& c) {
  const SliceLayout layout = RandomLayout(random, c.slice.size() / c.element_bytes);
  const LiveSlice live(runner, c.slice, c.element_bytes, layout);
  std::vector<GatherBlock> blocks;
  uint64_t first = c.first_element;
  for (const uint32_t elements : c.elements) {
    const uint64_t words = (uint64_t{elements} * c.element_bytes + 7) / 8;
    blocks.push_back({.target = runner.Put(Bytes(words * 8 + 8, std::byte{0xEE})),
                      .first_element = first,
                      .elements = elements,
                      .place = 0,
                      .element_bytes = static_cast<uint8_t>(c.element_bytes)});
    first += elements;
  }
  runner.Launch(Kernel::kGather,
                GatherArgs{.blocks = runner.PutItems(blocks),
                           .places = runner.PutItems(std::vector<Place>{live.place()}),
                           .block_count = static_cast<uint32_t>(blocks.size())},
                blocks.size());
  for (const GatherBlock& block : blocks) {
    const uint64_t size = uint64_t{block.elements} * c.element_bytes;
    const auto begin = c.slice.begin() + static_cast<ptrdiff_t>(block.first_element) *
                                             static_cast<ptrdiff_t>(c.element_bytes);
    Bytes expected(begin, begin + static_cast<ptrdiff_t>(size));
    expected.resize((size + 7) / 8 * 8);                    // zeros after the last element
    expected.resize(expected.size() + 8, std::byte{0xEE});  // and nothing after those
    CHECK(runner.ReadBytes(block.target, expected.size()) == expected);
  }
  CHECK(live.Read() == c.slice);
  CHECK(live.SurroundingsIntact());
}

TEST_CASE("blocks of any layout are gathered in slice order", "[kernels]") {
  Random random(samples::TestSeed());
  const auto runner = MakeKernelRunner();
  for (const uint32_t element_bytes : {1U, 2U, 4U, 8U}) {
    for (int round = 0; round < 20; ++round) {
      GatherCase c{.slice = {}, .element_bytes = element_bytes, .first_element = 0, .elements = {}};
      c.first_element = random.Below(100);
      uint64_t all = c.first_element;
      const size_t count = 1 + random.Below(4);
      for (size_t i = 0; i < count; ++i) {
        c.elements.push_back(static_cast<uint32_t>(1 + random.Below(3000)));
        all += c.elements.back();
      }
      c.slice = samples::RandomBytes(random, (all + random.Below(10)) * element_bytes);
      CheckGather(*runner, random, c);
      runner->Clear();
    }
  }
}

TEST_CASE("blocks of the full size are gathered", "[kernels]") {
  Random random(samples::TestSeed());
  const auto runner = MakeKernelRunner();
  GatherCase c{.slice = samples::RandomBytes(random, size_t{131'072} * 2 + 10),
               .element_bytes = 2,
               .first_element = 0,
               .elements = {65'536, 65'536, 5}};
  CheckGather(*runner, random, c);
}

}  // namespace
}  // namespace dws::cuda
