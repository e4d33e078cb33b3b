// The figures of an estimate equal the sizes of real objects.
#include <catch2/catch.hpp>
#include <filesystem>

#include "common/delta/bits/compression.h"
#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/estimate.h"
#include "tools/checkpoint/slime_size.h"

namespace dws::checkpoint {
namespace {

Result<Estimate> EstimateOf(Scene& scene, const std::string& a, const std::string& b) {
  DWS_ASSIGN_OR_RETURN(const Checkpoint before, Checkpoint::Open(a));
  DWS_ASSIGN_OR_RETURN(const Checkpoint after, Checkpoint::Open(b));
  return EstimateSync(before, after, {}, scene.pool, NoProgress);
}

}  // namespace

TEST_CASE("estimated sizes are those of the objects that pack writes", "[checkpoint]") {
  const uint64_t one_of = GENERATE(1, 20, 500);
  Scene scene(5, one_of);
  const auto estimate = EstimateOf(scene, scene.A(), scene.B());
  REQUIRE(estimate.ok());
  CHECK(estimate->fast_bytes == std::filesystem::file_size(scene.Delta(DeltaProfile::kFast)));
  CHECK(estimate->wan_bytes == std::filesystem::file_size(scene.Delta(DeltaProfile::kWan)));
  CHECK(estimate->wan_bytes < estimate->fast_bytes);
  const auto packed = scene.PackTo(scene.A(), scene.B(), scene.folder.File("d.dws"));
  CHECK(estimate->changed == packed->changed_elements);
  CHECK(estimate->elements == packed->elements);
  CHECK(estimate->changed_tensors == packed->changed_tensors);
}

TEST_CASE("groups and steps and densities each count every change once", "[checkpoint]") {
  Scene scene;
  const auto estimate = EstimateOf(scene, scene.A(), scene.B());
  REQUIRE(estimate.ok());
  uint64_t changed = 0;
  uint64_t tensors = 0;
  for (const GroupEstimate& group : estimate->groups) {
    changed += group.changed;
    tensors += group.tensors;
  }
  CHECK(changed == estimate->changed);
  CHECK(tensors == estimate->tensors);
  for (size_t i = 1; i < estimate->groups.size(); ++i) {
    CHECK(estimate->groups[i - 1].changed_bytes >= estimate->groups[i].changed_bytes);
  }
  uint64_t steps = estimate->changed_integers;
  for (const uint64_t count : estimate->steps) steps += count;
  CHECK(steps == estimate->changed);
  tensors = 0;
  for (const DensityBin& bin : estimate->densities) tensors += bin.tensors;
  CHECK(tensors == estimate->tensors);
}

TEST_CASE("steps are counted in units in the last place", "[checkpoint]") {
  Scene scene;
  TestModel a;
  a["w"] = {.dtype = safetensors::FileDType::kBF16, .shape = {8}, .bytes = {}};
  a["w"].bytes.resize(16);
  for (size_t i = 0; i < 8; ++i) StoreLe<uint16_t>(a["w"].bytes.data() + 2 * i, 0x3F80);
  TestModel b = a;
  const uint16_t after[8] = {0x3F81, 0x3F7F, 0x3F82, 0x3F84, 0x3F88, 0x3F80, 0x3F80, 0xBF80};
  for (size_t i = 0; i < 8; ++i) StoreLe<uint16_t>(b["w"].bytes.data() + 2 * i, after[i]);
  WriteFolder(a, scene.folder.File("a"), kSmallShard);
  WriteFolder(b, scene.folder.File("b"), kSmallShard);
  const auto estimate = EstimateOf(scene, scene.folder.File("a"), scene.folder.File("b"));
  REQUIRE(estimate.ok());
  CHECK(estimate->steps == StepCounts{2, 1, 1, 1, 0, 0, 0, 0, 1});
  CHECK(estimate->changed == 6);
  CHECK(estimate->densities[8].tensors == 1);  // 75 % is in the bin up to 90 %
}

TEST_CASE("slime's size is that of its compressed tensors with headers and index", "[checkpoint]") {
  Scene scene;
  const auto a = Checkpoint::Open(scene.A());
  const auto b = Checkpoint::Open(scene.B());
  uint64_t payloads = 0;  // at another level of zstd, so about the same
  uint64_t changed = 0;
  for (const auto& [name, tensor] : scene.a) {
    std::vector<std::byte> difference = tensor.bytes;
    for (size_t i = 0; i < difference.size(); ++i) difference[i] ^= scene.b[name].bytes[i];
    if (tensor.bytes == scene.b[name].bytes) continue;
    payloads += Compress(difference).size();
    ++changed;
  }
  const auto measured = MeasureSlime(MatchTensors(*a, *b), scene.pool, NoProgress);
  REQUIRE(measured.ok());
  CHECK(*measured > payloads * 7 / 10 + changed * 100);
  CHECK(*measured < payloads * 13 / 10 + changed * 300 + 1000);
  const auto nothing = MeasureSlime(MatchTensors(*a, *a), scene.pool, NoProgress);
  REQUIRE(nothing.ok());
  CHECK(*nothing < 300);  // an index without tensors
}

TEST_CASE("tensors in only one checkpoint or of another shape are named and left out",
          "[checkpoint]") {
  Scene scene;
  TestModel other = scene.b;
  other.erase("scale");
  other["more"] = RandomTensor(safetensors::FileDType::kU8, {3}, 1);
  other["deep"] = RandomTensor(safetensors::FileDType::kBF16, {2}, 1);
  WriteFolder(other, scene.folder.File("other"), kSmallShard);
  const auto estimate = EstimateOf(scene, scene.A(), scene.folder.File("other"));
  REQUIRE(estimate.ok());
  REQUIRE(estimate->mismatches.size() == 3);
  CHECK(estimate->mismatches[0].name == "deep");
  CHECK(estimate->mismatches[1].what == "only in B");
  CHECK(estimate->mismatches[2].what == "only in A");
  CHECK(estimate->tensors == scene.a.size() - 2);
}

}  // namespace dws::checkpoint
