// pack, apply and squash over checkpoints of every dtype: the results are exact to the bit.
#include <catch2/catch.hpp>
#include <filesystem>
#include <vector>

#include "common/delta/encoder.h"
#include "common/delta/objects/object_writer.h"
#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/apply.h"
#include "tools/checkpoint/parts/delta_chain.h"

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
  Status ApplyTo(const std::string& out, std::span<const std::string> chain) {
    return ApplyDeltas(scene.files, {.base = folders[0], .deltas = chain, .out = out}, scene.pool,
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

TEST_CASE("applying a packed delta gives every file of the other checkpoint", "[checkpoint]") {
  const auto profile = GENERATE(DeltaProfile::kFast, DeltaProfile::kWan, DeltaProfile::kDirect);
  const uint64_t one_of = GENERATE(1, 3, 1000);
  Scene scene(1, one_of);
  const std::vector<std::string> deltas = {scene.Delta(profile)};
  const std::string out = scene.folder.File("out");
  const auto made = ApplyDeltas(scene.files, {.base = scene.A(), .deltas = deltas, .out = out},
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

TEST_CASE("the result for a checkpoint of one file is one file", "[checkpoint]") {
  Scene scene;
  const std::string a = scene.folder.File("a.safetensors");
  const std::string b = scene.folder.File("b.safetensors");
  WriteSingle(scene.a, a);
  WriteSingle(scene.b, b);
  const std::vector<std::string> deltas = {scene.folder.File("d.dws")};
  REQUIRE(scene.PackTo(a, b, deltas[0]).ok());
  const std::string out = scene.folder.File("out.safetensors");
  REQUIRE(
      ApplyDeltas(scene.files, {.base = a, .deltas = deltas, .out = out}, scene.pool, NoProgress)
          .ok());
  CHECK(ReadText(out) == ReadText(b));
  // A delta does not depend on how the checkpoint is split into files.
  const std::string folder = scene.folder.File("out");
  REQUIRE(ApplyDeltas(scene.files, {.base = scene.A(), .deltas = deltas, .out = folder}, scene.pool,
                      NoProgress)
              .ok());
  CHECK(ReadModel(folder) == scene.b);
}

TEST_CASE("the same checkpoints give the same object with any number of threads", "[checkpoint]") {
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
  const Status made = history.ApplyTo(out, history.deltas);
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
    const Status refused = history.ApplyTo(out, chain);
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK(refused.ToString().find(chain[1]) != std::string::npos);
    CHECK_FALSE(std::filesystem::exists(out));
  }
}

TEST_CASE("a delta squashed over the weights or alone makes the same change as its chain",
          "[checkpoint]") {
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
  const auto packed = SquashAlone(scene.files, *layout, history.deltas, alone, NoProgress);
  REQUIRE(packed.ok());
  CHECK(packed->base_version == 1);
  CHECK(packed->version == 4);
  for (const std::string& delta : {over, alone}) {
    const std::string out = scene.folder.File("out-of-" + delta.substr(delta.rfind('/') + 1));
    REQUIRE(history.ApplyTo(out, std::vector<std::string>{delta}).ok());
    CHECK(ReadModel(out) == history.models[3]);
  }
}

TEST_CASE("deltas whose versions follow each other but whose weights do not are not squashed",
          "[checkpoint]") {
  History history(4);
  Scene& scene = history.scene;
  // From version 3 to 4, but labelled 2 to 3.
  const std::string other = scene.folder.File("other.dws");
  REQUIRE(
      scene.PackTo(history.folders[2], history.folders[3], other, {.base_version = 2, .version = 3})
          .ok());
  const auto layout = LayoutOf(*Checkpoint::Open(history.folders[0]));
  const std::string out = scene.folder.File("squashed.dws");
  const std::vector<std::string> chain = {history.deltas[0], other};
  const auto refused = SquashAlone(scene.files, *layout, chain, out, NoProgress);
  INFO(refused.status().ToString());
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(refused.status().ToString().find("other.dws does not follow") != std::string::npos);
  CHECK(refused.status().ToString().find("'embed.weight'") != std::string::npos);
  CHECK_FALSE(std::filesystem::exists(out));
}

TEST_CASE("squashing deltas alone can be cancelled at any frame and leaves no file",
          "[checkpoint]") {
  History history(3);
  Scene& scene = history.scene;
  const auto layout = LayoutOf(*Checkpoint::Open(history.folders[0]));
  const std::string out = scene.folder.File("squashed.dws");
  ProgressStep last;
  int ended = 0;
  bool done = false;
  for (int allowed = 0; !done; ++allowed) {
    CAPTURE(allowed);
    REQUIRE(allowed < 300);
    int left = allowed;
    const Progress progress = [&](const ProgressStep& step) {
      last = step;
      return left-- > 0 ? OkStatus() : CancelledError("enough");
    };
    const auto packed = SquashAlone(scene.files, *layout, history.deltas, out, progress);
    done = packed.ok();
    CHECK((done || absl::IsCancelled(packed.status())));
    CHECK(std::filesystem::exists(out) == done);
    ended += done ? 0 : 1;
  }
  CHECK(ended > 10);
  CHECK(last.total_bytes > 0);
  CHECK(last.done_bytes == last.total_bytes);
}

TEST_CASE("a tensor with several changed slices counts as one changed tensor", "[checkpoint]") {
  const TensorSpec cut{
      .name = "cut", .dtype = DType::kBF16, .shape = {4, 8}, .cuts = {{0, {1, 2, 3}}}};
  const TensorSpec whole{.name = "whole", .dtype = DType::kBF16, .shape = {8}};
  const auto layout = RankLayout::Create({{.tensor = cut, .cells = {{0, 4}}}, {.tensor = whole}});
  INFO(layout.status().ToString());
  REQUIRE(layout.ok());
  REQUIRE(layout->slice_count() == 5);
  ObjectWriter writer;
  for (uint32_t s = 0; s < 3; ++s) {  // all of the first tensor
    const BlockChanges changes{.positions = {5}, .steps = {1}};
    const std::vector<EncodedBlock> blocks = {EncodeSteps(DType::kBF16, changes, 8)};
    REQUIRE(writer.AddSlice({.slice = RankSlice(s), .before = {}, .after = {}}, blocks).ok());
  }
  Scene scene;
  const std::vector<std::string> deltas = {scene.folder.File("d.dws")};
  const auto object = writer.Finish({.version = WeightVersion(2),
                                     .base_version = WeightVersion(1),
                                     .layout_signature = layout->signature()});
  REQUIRE(scene.files.ReplaceFile(deltas[0], object).ok());
  const auto packed =
      SquashAlone(scene.files, *layout, deltas, scene.folder.File("s.dws"), NoProgress);
  INFO(packed.status().ToString());
  REQUIRE(packed.ok());
  CHECK(packed->changed_tensors == 1);
  CHECK(packed->changed_elements == 3);
}

TEST_CASE("deltas of profile wan are squashed over the weights and refused alone", "[checkpoint]") {
  History history(3, DeltaProfile::kWan);
  Scene& scene = history.scene;
  const auto base = Checkpoint::Open(history.folders[0]);
  const auto layout = LayoutOf(*base);
  const std::string out = scene.folder.File("squashed.dws");
  const auto refused = SquashAlone(scene.files, *layout, history.deltas, out, NoProgress);
  CHECK(absl::IsDataLoss(refused.status()));
  CHECK_FALSE(std::filesystem::exists(out));
  REQUIRE(SquashOver(scene.files, *base, history.deltas, DeltaProfile::kWan, out, scene.pool,
                     NoProgress)
              .ok());
  const std::string folder = scene.folder.File("out");
  REQUIRE(history.ApplyTo(folder, std::vector<std::string>{out}).ok());
  CHECK(ReadModel(folder) == history.models[2]);
}

}  // namespace dws::checkpoint
