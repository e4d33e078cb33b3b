// pack, apply, materialize and squash over checkpoints of every dtype: what comes out is bit for
// bit what went in.
#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/delta_chain.h"
#include "tools/checkpoint/materialize.h"

namespace dws::checkpoint {
namespace {

// Versions 1 to `count`, and the deltas between them.
struct History {
  explicit History(uint32_t count, DeltaProfile profile = DeltaProfile::kFast) {
    models.push_back(scene.a);
    folders.push_back(scene.A());
    for (uint32_t v = 2; v <= count; ++v) {
      models.push_back(models.back());
      Train(models.back(), 20 * v, v);
      folders.push_back(scene.folder.File(fmt::format("v{}", v)));
      WriteFolder(models.back(), folders.back(), kSmallShard);
      deltas.push_back(scene.folder.File(fmt::format("{}.dws", v)));
      const auto packed = scene.PackTo(folders[v - 2], folders.back(), deltas.back(),
                                       {.base_version = v - 1, .version = v, .profile = profile});
      REQUIRE(packed.ok());
    }
  }
  Status MaterializeTo(const std::string& out, std::span<const std::string> chain) {
    return Materialize(scene.files, {.base = folders[0], .deltas = chain, .out = out}, scene.pool,
                       NoProgress)
        .status();
  }
  Scene scene;
  std::vector<TestModel> models;
  std::vector<std::string> folders;
  std::vector<std::string> deltas;
};

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("applying what was packed gives the other checkpoint, file by file", "[checkpoint]") {
  const auto profile = GENERATE(DeltaProfile::kFast, DeltaProfile::kWan, DeltaProfile::kDirect);
  const uint64_t one_of = GENERATE(1, 3, 1000);
  Scene scene(1, one_of);
  const std::vector<std::string> deltas = {scene.Delta(profile)};
  const std::string out = scene.folder.File("out");
  const auto made = Materialize(scene.files, {.base = scene.A(), .deltas = deltas, .out = out},
                                scene.pool, NoProgress);
  INFO(made.status().ToString());
  REQUIRE(made.ok());
  CHECK(made->version == 2);
  CHECK(Names(out) == Names(scene.B()));
  CHECK(Names(out).size() > 4);  // sharded, with index and config
  for (const std::string& name : Names(scene.B())) {
    CAPTURE(name);
    CHECK(ReadText(out + "/" + name) == ReadText(scene.B() + "/" + name));
  }
}

TEST_CASE("a checkpoint of one file becomes a file", "[checkpoint]") {
  Scene scene;
  const std::string a = scene.folder.File("a.safetensors");
  const std::string b = scene.folder.File("b.safetensors");
  WriteSingle(scene.a, a);
  WriteSingle(scene.b, b);
  const std::vector<std::string> deltas = {scene.folder.File("d.dws")};
  REQUIRE(scene.PackTo(a, b, deltas[0]).ok());
  const std::string out = scene.folder.File("out.safetensors");
  REQUIRE(
      Materialize(scene.files, {.base = a, .deltas = deltas, .out = out}, scene.pool, NoProgress)
          .ok());
  CHECK(ReadText(out) == ReadText(b));
  // The split into files is nobody's business but the checkpoint's.
  const std::string folder = scene.folder.File("out");
  REQUIRE(Materialize(scene.files, {.base = scene.A(), .deltas = deltas, .out = folder}, scene.pool,
                      NoProgress)
              .ok());
  CHECK(ReadModel(folder) == scene.b);
}

TEST_CASE("the same checkpoints give the same object, whatever the number of threads",
          "[checkpoint]") {
  Scene scene;
  const std::string first = ReadText(scene.Delta(DeltaProfile::kWan));
  ThreadPool alone(0);
  const auto a = Checkpoint::Open(scene.A());
  const auto b = Checkpoint::Open(scene.B());
  const std::string path = scene.folder.File("again.dws");
  REQUIRE(Pack(scene.files, *a, *b, {.profile = DeltaProfile::kWan}, path, alone, NoProgress).ok());
  CHECK(ReadText(path) == first);
}

TEST_CASE("a chain of deltas leads to its last version", "[checkpoint]") {
  const auto profile = GENERATE(DeltaProfile::kFast, DeltaProfile::kWan);
  History history(4, profile);
  const std::string out = history.scene.folder.File("out");
  const Status made = history.MaterializeTo(out, history.deltas);
  INFO(made.ToString());
  REQUIRE(made.ok());
  CHECK(ReadModel(out) == history.models[3]);
}

TEST_CASE("deltas out of order or with a gap are refused by their names", "[checkpoint]") {
  History history(4);
  const std::string out = history.scene.folder.File("out");
  for (const std::vector<std::string>& chain :
       {std::vector<std::string>{history.deltas[0], history.deltas[2]},
        std::vector<std::string>{history.deltas[1], history.deltas[0]}}) {
    const Status refused = history.MaterializeTo(out, chain);
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK(refused.ToString().find(chain[1]) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(out));
  }
}

TEST_CASE("a squashed delta does what the chain does, over the weights and alone", "[checkpoint]") {
  History history(4);
  Scene& scene = history.scene;
  const auto base = Checkpoint::Open(history.folders[0]);
  REQUIRE(base.ok());
  const auto layout = LayoutOf(*base);
  REQUIRE(layout.ok());
  const std::string over = scene.folder.File("over.dws");
  const std::string alone = scene.folder.File("alone.dws");
  REQUIRE(SquashOver(scene.files, *base, history.deltas, DeltaProfile::kFast, over, scene.pool,
                     NoProgress)
              .ok());
  const auto packed = SquashAlone(scene.files, *layout, history.deltas, alone);
  REQUIRE(packed.ok());
  CHECK(packed->base_version == 1);
  CHECK(packed->version == 4);
  for (const std::string& delta : {over, alone}) {
    const std::string out = scene.folder.File("out-of-" + delta.substr(delta.rfind('/') + 1));
    REQUIRE(history.MaterializeTo(out, std::vector<std::string>{delta}).ok());
    CHECK(ReadModel(out) == history.models[3]);
  }
}

TEST_CASE("deltas whose numbers follow and whose weights do not are not squashed", "[checkpoint]") {
  History history(4);
  Scene& scene = history.scene;
  // From version 3 to 4, and called from 2 to 3.
  const std::string other = scene.folder.File("other.dws");
  REQUIRE(
      scene.PackTo(history.folders[2], history.folders[3], other, {.base_version = 2, .version = 3})
          .ok());
  const auto layout = LayoutOf(*Checkpoint::Open(history.folders[0]));
  const std::string out = scene.folder.File("squashed.dws");
  const std::vector<std::string> chain = {history.deltas[0], other};
  const auto refused = SquashAlone(scene.files, *layout, chain, out);
  INFO(refused.status().ToString());
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(refused.status().ToString().find("other.dws does not follow") != std::string::npos);
  CHECK(refused.status().ToString().find("'embed.weight'") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("deltas of profile wan are squashed over the weights, and alone are refused",
          "[checkpoint]") {
  History history(3, DeltaProfile::kWan);
  Scene& scene = history.scene;
  const auto base = Checkpoint::Open(history.folders[0]);
  const auto layout = LayoutOf(*base);
  const std::string out = scene.folder.File("squashed.dws");
  const auto refused = SquashAlone(scene.files, *layout, history.deltas, out);
  CHECK(absl::IsDataLoss(refused.status()));
  CHECK_FALSE(std::filesystem::exists(out));
  REQUIRE(SquashOver(scene.files, *base, history.deltas, DeltaProfile::kWan, out, scene.pool,
                     NoProgress)
              .ok());
  const std::string folder = scene.folder.File("out");
  REQUIRE(history.MaterializeTo(folder, std::vector<std::string>{out}).ok());
  CHECK(ReadModel(folder) == history.models[2]);
}

}  // namespace dws::checkpoint
