#include "sender_daemon/capture/density_watch.h"

#include <catch2/catch.hpp>
#include <map>
#include <string>
#include <vector>

#include "tests/sender_daemon/weights.h"

namespace dws {
namespace {

constexpr uint64_t kBlocks = 16;  // of each tensor
constexpr uint64_t kElements = kBlocks * limits::kBlockElements;

Shard Tensor(std::string name, DType dtype = DType::kF32) {
  return {.tensor = {.name = std::move(name), .dtype = dtype, .shape = {kElements}, .cuts = {}}};
}

// Two tensors of one group, and others.
RankLayout Model() {
  return MakeLayout({Tensor("layers.0.w"), Tensor("layers.1.w"), Tensor("norm", DType::kBF16),
                     Tensor("scales", DType::kF8E8M0)});
}

// What a version does to a tensor: so many dense blocks and so many others, all of one size.
struct Change {
  uint64_t dense = 0;
  uint64_t sparse = 0;
  size_t payload_bytes = 1000;
};

std::vector<EncodedBlock> Encoded(const RankLayout& layout,
                                  const std::map<std::string, Change>& changes) {
  std::vector<EncodedBlock> blocks(layout.block_count());
  for (uint32_t s = 0; s < layout.slice_count(); ++s) {
    const auto change = changes.find(layout.tensor(RankSlice(s)).name);
    if (change == changes.end()) continue;
    const uint64_t first = layout.slice(RankSlice(s)).first_block;
    const auto [dense, sparse, payload_bytes] = change->second;
    for (uint64_t b = 0; b < dense + sparse; ++b) {
      blocks[first + b] = {.mode = b < dense ? BlockMode::kDenseUlp : BlockMode::kSplitRice,
                           .nnz = 60'000,
                           .payload = std::vector<std::byte>(payload_bytes)};
    }
  }
  return blocks;
}

struct Watched {
  RankLayout layout = Model();
  DensityWatch watch{layout};

  VersionDensity Learn(const std::map<std::string, Change>& changes) {
    return watch.Learn(Encoded(layout, changes));
  }
  bool EncodesDense(uint32_t slice, uint64_t changed = limits::kBlockElements) const {
    return watch.EncodesDense(RankSlice(slice), changed, limits::kBlockElements);
  }
};

const Change kDense{.dense = kBlocks};
const Change kSparse{.sparse = kBlocks};

TEST_CASE("a whole group turns dense after two dense versions in a row", "[density]") {
  Watched model;
  const Change most{.dense = 14, .sparse = 2};
  VersionDensity found = model.Learn({{"layers.0.w", most}, {"scales", kSparse}});
  CHECK(found.groups == 3);
  CHECK(found.dense_groups == 0);
  CHECK(found.turns.empty());
  CHECK(model.Learn({{"layers.0.w", {.dense = 13, .sparse = 3}}}).turns.empty());
  CHECK(model.Learn({{"layers.0.w", most}}).turns.empty());
  CHECK_FALSE(model.EncodesDense(0));
  CHECK(model.Learn({{"norm", kSparse}}).turns.empty());  // the group did not change: no evidence
  found = model.Learn({{"layers.0.w", most}, {"scales", kSparse}});
  REQUIRE(found.turns.size() == 1);
  CHECK(found.turns[0].dense);
  CHECK(found.turns[0].group.name == "layers.*.w");
  CHECK(found.turns[0].group.elements == 2 * kElements);
  CHECK(found.turns[0].group.full_bytes == 8 * kElements);
  CHECK(found.turns[0].group.changed == 16 * 60'000);
  CHECK(found.dense_groups == 1);
  CHECK(found.dense_bytes == 16'000);
  CHECK(model.EncodesDense(0));
  CHECK(model.EncodesDense(1));  // of the same group
  CHECK_FALSE(model.EncodesDense(2));
  CHECK_FALSE(model.EncodesDense(0, 40'000));  // few changes: positions are tried
}

TEST_CASE("a dense group without changes stays dense and is still reported", "[density]") {
  Watched model;
  for (int i = 0; i < 2; ++i) model.Learn({{"scales", kDense}});
  for (int i = 0; i < 40; ++i) {
    const VersionDensity found = model.Learn({{"norm", kSparse}});
    CHECK(found.dense_groups == 1);
    CHECK(found.dense_bytes == 0);
    REQUIRE(found.worst.size() == 1);
    CHECK(found.worst[0].name == "scales");
    CHECK(found.worst[0].wire_bytes == 16'000);
  }
  CHECK(model.EncodesDense(3));
}

TEST_CASE("one version of sixteen of a dense group is encoded both ways", "[density]") {
  Watched model;
  for (int i = 0; i < 2; ++i) model.Learn({{"scales", kDense}});
  std::vector<int> both;
  for (int i = 1; i <= 64; ++i) {
    if (!model.EncodesDense(3)) both.push_back(i);
    model.Learn({{"scales", kDense}});
  }
  CHECK(both == std::vector<int>{16, 32, 48, 64});
}

TEST_CASE("a dense group turns sparse after two versions in a row that are smaller with positions",
          "[density]") {
  Watched model;
  for (int i = 0; i < 2; ++i) model.Learn({{"scales", kDense}});
  while (model.EncodesDense(3)) model.Learn({{"scales", kDense}});
  const Change few{.dense = 11, .sparse = 5};
  CHECK(model.Learn({{"scales", few}}).dense_groups == 1);
  CHECK_FALSE(model.EncodesDense(3));  // the next version decides
  SECTION("the next version is smaller with positions too") {
    const VersionDensity found = model.Learn({{"scales", few}});
    REQUIRE(found.turns.size() == 1);
    CHECK_FALSE(found.turns[0].dense);
    CHECK(found.dense_groups == 0);
    CHECK(found.worst.empty());
    CHECK_FALSE(model.EncodesDense(3));
  }
  SECTION("a group between the thresholds does not change state") {
    for (int i = 0; i < 20; ++i) {
      CHECK(model.Learn({{"scales", {.dense = 13, .sparse = 3}}}).turns.empty());
    }
    CHECK(model.Learn({}).dense_groups == 1);
  }
}

TEST_CASE("a dense group whose changes take more bytes is encoded both ways at once", "[density]") {
  Watched model;
  for (int i = 0; i < 2; ++i) model.Learn({{"scales", kDense}});
  model.Learn({{"scales", {.dense = kBlocks, .payload_bytes = 1250}}});
  CHECK(model.EncodesDense(3));
  model.Learn({{"scales", {.dense = kBlocks, .payload_bytes = 1260}}});
  CHECK_FALSE(model.EncodesDense(3));
  model.Learn({{"scales", {.dense = kBlocks, .payload_bytes = 1260}}});  // dense is smaller still
  CHECK(model.EncodesDense(3));
  model.Learn({{"scales", {.dense = kBlocks, .payload_bytes = 1260}}});
  CHECK(model.EncodesDense(3));
}

TEST_CASE("at most eight dense groups are reported with the largest first", "[density]") {
  std::vector<Shard> shards;
  std::map<std::string, Change> changes;
  for (char name = 'a'; name < 'm'; ++name) {
    shards.push_back(Tensor(std::string(1, name)));
    changes[std::string(1, name)] = {.dense = 1, .payload_bytes = size_t{100} + name % 5};
  }
  const RankLayout layout = MakeLayout(std::move(shards));
  DensityWatch watch(layout);
  watch.Learn(Encoded(layout, changes));
  const VersionDensity found = watch.Learn(Encoded(layout, changes));
  CHECK(found.dense_groups == 12);
  REQUIRE(found.worst.size() == limits::kDenseGroupsShown);
  CHECK(found.turns.size() == limits::kDenseGroupsShown);
  std::string names;
  for (const GroupDensity& group : found.worst) names += group.name;
  CHECK(names == "chbglafk");  // by 'name % 5', then by name
}

TEST_CASE("a version with an eighth of all bytes is dense as a whole", "[density]") {
  Watched model;
  const auto eighth = static_cast<size_t>(model.layout.size_bytes() / 8 / kBlocks);
  VersionDensity found = model.Learn({{"scales", {.sparse = kBlocks, .payload_bytes = eighth}}});
  CHECK(found.dense);
  CHECK(found.turned);
  CHECK(found.dense_groups == 0);
  found = model.Learn({{"scales", {.dense = kBlocks, .payload_bytes = eighth}}});
  CHECK(found.dense);
  CHECK_FALSE(found.turned);
  found = model.Learn({{"scales", {.dense = kBlocks, .payload_bytes = eighth - 1}}});
  CHECK_FALSE(found.dense);
  CHECK(found.turned);
}

}  // namespace
}  // namespace dws
