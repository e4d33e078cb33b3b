// No command writes over a file that it reads, under any name, or over a file that is not a delta
// object.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <map>
#include <vector>

#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/apply.h"

namespace dws::checkpoint {
namespace {

// Two checkpoints of one file each, and the delta between them.
struct Inputs {
  Inputs() {
    WriteSingle(scene.a, a);
    WriteSingle(scene.b, b);
    REQUIRE(scene.PackTo(a, b, delta).ok());
  }

  // Contents by name.
  std::map<std::string, std::string> Content() const {
    std::map<std::string, std::string> files;
    for (const auto& entry : std::filesystem::directory_iterator(scene.folder.path())) {
      if (entry.is_regular_file()) files[entry.path().filename()] = ReadText(entry.path());
    }
    return files;
  }

  Scene scene;
  const std::string a = scene.folder.File("out.frames.tmp");
  const std::string b = scene.folder.File("other.tmp");
  const std::string delta = scene.folder.File("delta.dws.tmp");
};

bool Says(const Status& status, const std::string& text) {
  UNSCOPED_INFO(status.ToString());
  return status.ToString().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("pack refuses an output whose file or temporary file is an input", "[checkpoint]") {
  Inputs inputs;
  Scene& scene = inputs.scene;
  const std::string link = scene.folder.File("link");
  std::filesystem::create_symlink(inputs.a, link);
  const std::string hard = scene.folder.File("hard.tmp");
  std::filesystem::create_hard_link(inputs.b, hard);
  const auto before = inputs.Content();
  for (const std::string& out : {inputs.a, inputs.b, link, scene.folder.File("out"),
                                 scene.folder.File("other"), scene.folder.File("hard")}) {
    CAPTURE(out);
    const Status refused = scene.PackTo(inputs.a, inputs.b, out).status();
    CHECK(absl::IsInvalidArgument(refused));
    CHECK(Says(refused, "is read by this command"));
  }
  // Inputs given by folder, output a file in it.
  const std::string shard = scene.A() + "/model-00001-of-00005.safetensors";
  const std::string bytes = ReadText(shard);
  CHECK(absl::IsInvalidArgument(scene.PackTo(scene.A(), scene.B(), shard).status()));
  CHECK(ReadText(shard) == bytes);
  CHECK(inputs.Content() == before);
}

TEST_CASE("squash refuses an output whose file or temporary file is an input", "[checkpoint]") {
  Inputs inputs;
  Scene& scene = inputs.scene;
  const std::vector<std::string> deltas = {inputs.delta};
  const auto base = Checkpoint::Open(inputs.a);
  const auto layout = LayoutOf(*base);
  const auto before = inputs.Content();
  for (const std::string& out :
       {inputs.a, scene.folder.File("out"), inputs.delta, scene.folder.File("delta.dws")}) {
    CAPTURE(out);
    CHECK(absl::IsInvalidArgument(
        SquashOver(scene.files, *base, deltas, DeltaProfile::kFast, out, scene.pool, NoProgress)
            .status()));
  }
  for (const std::string& out : {inputs.delta, scene.folder.File("delta.dws")}) {
    CAPTURE(out);
    CHECK(absl::IsInvalidArgument(
        SquashAlone(scene.files, *layout, deltas, out, NoProgress).status()));
  }
  CHECK(inputs.Content() == before);
}

TEST_CASE("apply refuses an output whose temporary file is an input", "[checkpoint]") {
  Inputs inputs;
  Scene& scene = inputs.scene;
  const std::vector<std::string> deltas = {inputs.delta};
  const auto before = inputs.Content();
  for (const std::string& out : {scene.folder.File("out.frames"), scene.folder.File("delta.dws")}) {
    CAPTURE(out);
    const Status refused =
        ApplyDeltas(scene.files, {.base = inputs.a, .deltas = deltas, .out = out}, scene.pool,
                    NoProgress)
            .status();
    CHECK(absl::IsInvalidArgument(refused));
  }
  CHECK(inputs.Content() == before);
}

TEST_CASE("pack replaces only a delta object or an empty file", "[checkpoint]") {
  Scene scene;
  const std::string out = scene.Delta();
  CHECK(scene.PackTo(scene.A(), scene.B(), out).ok());
  const std::string other = scene.folder.File("other");
  std::ofstream(other) << "DWS is a text of mine";
  const Status refused = scene.PackTo(scene.A(), scene.B(), other).status();
  CHECK(absl::IsAlreadyExists(refused));
  CHECK(Says(refused, "other exists and is not a delta object: name another, or remove it"));
  CHECK(ReadText(other) == "DWS is a text of mine");
  CHECK(absl::IsAlreadyExists(scene.PackTo(scene.A(), scene.B(), scene.folder.path()).status()));
  std::ofstream(other, std::ios::trunc).close();  // empty: nothing is lost
  CHECK(scene.PackTo(scene.A(), scene.B(), other).ok());
  CHECK(ReadText(other) == ReadText(out));
}

}  // namespace dws::checkpoint
