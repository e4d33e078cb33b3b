// Properties of the additive digest: known answers, sums over slices, and every single wrong word
// changes it.
#include "common/model/digest/digest.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <set>

#include "common/model/layout.h"
#include "common/model/limits.h"
#include "tests/common/delta/samples.h"

namespace dws {
namespace {

using samples::Bytes;
using samples::Random;

Bytes FromHex(const std::string& hex) {
  Bytes bytes;
  for (size_t i = 0; i < hex.size(); i += 2) {
    bytes.push_back(static_cast<std::byte>(std::stoul(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

// The part of `state` that one slice of a tensor cut on its first dimension holds.
ByteSpan SliceBytes(const TensorSpec& spec, const Bytes& state, uint32_t slice) {
  size_t begin = 0;
  for (uint32_t s = 0; s < slice; ++s) begin += spec.SliceBytes(s);
  return ByteSpan(state).subspan(begin, spec.SliceBytes(slice));
}

}  // namespace

TEST_CASE("digests equal those of another implementation", "[digest]") {
  std::ifstream file("tests/golden/digest_known_answers.json");
  const nlohmann::json answers = nlohmann::json::parse(file);
  REQUIRE(answers.size() > 5);
  for (const nlohmann::json& answer : answers) {
    const Bytes bytes = FromHex(answer["bytes"]);
    REQUIRE(ToString(DigestBytes(bytes, answer["first_word"].get<uint64_t>())) == answer["digest"]);
  }
}

TEST_CASE("digests of blocks sum to slices and slices to the tensor", "[digest]") {
  Random random(samples::TestSeed());
  TensorSpec spec;
  spec.name = "w";
  spec.dtype = DType::kU8;
  spec.shape = {301, 1003};
  spec.cuts = {{0, {1, 100, 230}}};
  const Bytes state = samples::RandomBytes(random, spec.SizeBytes());
  // Word by word from the definition: every block pads its own tail.
  Digest expected;
  Digest from_slices;
  uint64_t word = 0;
  for (uint32_t s = 0; s < spec.SliceCount(); ++s) {
    REQUIRE(spec.FirstWords(std::vector<uint32_t>{s})[0] == word);
    const ByteSpan slice = SliceBytes(spec, state, s);
    from_slices += DigestBytes(slice, word);
    for (size_t begin = 0; begin < slice.size(); begin += limits::kBlockElements) {
      const ByteSpan block =
          slice.subspan(begin, std::min<size_t>(slice.size() - begin, limits::kBlockElements));
      for (size_t at = 0; at < block.size(); at += 8) {
        uint64_t value = 0;
        std::memcpy(&value, block.data() + at, std::min<size_t>(8, block.size() - at));
        expected += MixWord(word++, value);
      }
    }
  }
  REQUIRE(from_slices == expected);
}

TEST_CASE("a single wrong word always changes the digest", "[digest]") {
  Random random(samples::TestSeed());
  const Bytes state = samples::RandomBytes(random, 1024);
  const Digest sound = DigestBytes(state, 9);
  for (size_t bit = 0; bit < state.size() * 8; ++bit) {
    Bytes wrong = state;
    wrong[bit / 8] ^= std::byte{1} << (bit % 8);
    const Digest digest = DigestBytes(wrong, 9);
    REQUIRE_FALSE(digest == sound);
  }
  for (int i = 0; i < 20'000; ++i) {
    Bytes wrong = state;
    const size_t at = random.Below(state.size() / 8) * 8;
    StoreLe(wrong.data() + at, random.Next());
    if (wrong != state) REQUIRE_FALSE(DigestBytes(wrong, 9) == sound);
  }
}

TEST_CASE("different words or word numbers mix to different pairs of lanes", "[digest]") {
  // The map is a bijection; small numbers and words are where a careless mix would collide.
  std::set<std::pair<uint64_t, uint64_t>> seen;
  for (uint64_t index = 0; index < 300; ++index) {
    for (uint64_t word = 0; word < 300; ++word) {
      const Digest mix = MixWord(index, word);
      REQUIRE(seen.emplace(mix.lane0, mix.lane1).second);
    }
  }
}

TEST_CASE("swapped blocks and zeroed pages and shifts and pairs of sign flips change the digest",
          "[digest]") {
  Random random(samples::TestSeed());
  const Bytes state = samples::RandomBytes(random, 1 << 16);
  const Digest sound = DigestBytes(state, 0);
  const auto differs = [&](auto damage) {
    Bytes wrong = state;
    damage(wrong);
    return wrong != state && !(DigestBytes(wrong, 0) == sound);
  };
  REQUIRE(
      differs([](Bytes& b) { std::swap_ranges(b.begin(), b.begin() + 4096, b.begin() + 8192); }));
  REQUIRE(differs([](Bytes& b) { std::fill(b.begin() + 4096, b.begin() + 8192, std::byte{0}); }));
  REQUIRE(differs([](Bytes& b) { std::rotate(b.begin(), b.begin() + 8, b.end()); }));
  REQUIRE(differs([](Bytes& b) { std::copy(b.begin(), b.begin() + 4096, b.begin() + 4096); }));
  for (int i = 0; i < 1000; ++i) {
    const size_t first = random.Below(state.size());
    const size_t second = random.Below(state.size());
    if (first == second) continue;
    REQUIRE(differs([&](Bytes& b) {
      b[first] ^= std::byte{0x80};
      b[second] ^= std::byte{0x80};
    }));
  }
}

TEST_CASE("padding counts as zeros and a digest prints as 32 hex digits", "[digest]") {
  const Bytes three = {std::byte{1}, std::byte{2}, std::byte{3}};
  Bytes padded = three;
  padded.resize(8);
  REQUIRE(DigestBytes(three, 4) == DigestBytes(padded, 4));
  REQUIRE(DigestBytes({}, 4) == Digest{});
  REQUIRE(ToString(Digest{.lane0 = 1, .lane1 = 0xABC}) == "00000000000000010000000000000abc");
}

}  // namespace dws
