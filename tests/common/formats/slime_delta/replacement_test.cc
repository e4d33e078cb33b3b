// Full versions as other programs write them: without an index, and with other tensors than the
// local checkpoint.
#include "common/formats/slime_delta/local/replacement.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "common/formats/safetensors/checkpoint_index.h"
#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// A full checkpoint in one file, without an index.
void WriteSingle(const std::string& folder, const Weights& weights) {
  PosixFileSystem files;
  REQUIRE(files.MakeFolders(folder).ok());
  const Status written = safetensors::WriteTensorFile(
      files, folder + "/" + safetensors::kSingleFile, {{"format", "pt"}}, TensorsOf(weights),
      [&](const safetensors::HeaderTensor& tensor) -> Result<ByteSpan> {
        return ByteSpan(weights.at(tensor.name));
      });
  INFO(written);
  REQUIRE(written.ok());
}

// A local checkpoint of four files at version 1, and weights with one tensor more and one fewer.
struct Scene {
  Scene() {
    WriteBase(local, base);
    const Weights next = Next(base, 2);
    REQUIRE(ApplyOnce(local, Publish(published, base, next, {.version = 1})) == "applied");
    now = next;
    other = Next(next, 3);
    other["lm_head"] = Bytes(400, std::byte{7});
    other.erase("scale");
  }
  std::string Folder(uint64_t version) const {
    return published + "/" + VersionFolderName(version);
  }
  std::vector<std::string> Files() {
    std::vector<std::string> names = *files.List(local);
    std::erase(names, ".weight_sync");
    return names;
  }

  TempFolder folder;
  PosixFileSystem files;
  std::string local = folder.File("local");
  std::string published = folder.File("published");
  Weights base = RandomWeights(1);
  Weights now;  // at version 1
  Weights other;
};

}  // namespace

TEST_CASE("a full version with one tensor more and one fewer replaces the files", "[slime]") {
  Scene scene;
  const bool single = GENERATE(false, true);
  if (single) {
    WriteSingle(scene.Folder(2), scene.other);
  } else {
    WriteBase(scene.Folder(2), scene.other);
  }
  dws::testing::WriteText(scene.local + "/config.json", "{}");
  constexpr auto kMode = fs::perms::owner_read | fs::perms::owner_write | fs::perms::others_read;
  for (const std::string& name : scene.Files()) fs::permissions(scene.local + "/" + name, kMode);
  ThreadPool pool(1);
  auto opened = LocalCheckpoint::Open(scene.files, pool, scene.local, {});
  REQUIRE(opened.ok());
  const auto report = (*opened)->Apply(scene.Folder(2));
  INFO(report.status());
  REQUIRE(report.ok());
  CHECK(report->applied);
  CHECK(report->tensor_count == scene.other.size() - 1);  // all but "untouched"
  CHECK(report->change.added == std::vector<std::string>{"lm_head"});
  CHECK(report->change.removed == std::vector<std::string>{"scale"});
  CHECK(Load(scene.local) == scene.other);
  CHECK((*opened)->Verify().ok());
  CHECK(fs::exists(scene.local + "/config.json"));
  for (const std::string& name : scene.Files()) {
    CAPTURE(name);
    CHECK(fs::status(scene.local + "/" + name).permissions() == kMode);
  }
  if (single) {
    CHECK(scene.Files() == std::vector<std::string>{"config.json", "model.safetensors"});
  } else {
    CHECK(scene.Files().size() == 6);  // four of weights, and the index
  }
  // The chain goes on from there, in the same process and in another.
  const Weights third = Next(scene.other, 4);
  const Weights fourth = Next(third, 5);
  const std::string delta = Publish(scene.published, scene.other, third, {.version = 3});
  const auto applied = (*opened)->Apply(delta);
  INFO(applied.status());
  REQUIRE(applied.ok());
  opened->reset();
  CHECK(ApplyOnce(scene.local, Publish(scene.published, third, fourth, {.version = 4})) ==
        "applied");
  CHECK(Load(scene.local) == fourth);
}

TEST_CASE("a full version in one file without an index is written into the local files",
          "[slime]") {
  Scene scene;
  const Weights next = Next(scene.now, 9);
  const std::vector<std::string> before = scene.Files();
  WriteSingle(scene.Folder(2), next);
  dws::testing::WriteText(scene.Folder(2) + "/consolidated.safetensors", "by other names");
  CHECK(ApplyOnce(scene.local, scene.Folder(2)) == "applied");
  CHECK(ApplyOnce(scene.local, scene.Folder(2)) == "already");
  CHECK(Load(scene.local) == next);
  CHECK(scene.Files() == before);
}

TEST_CASE("a file without an index whose bytes are not all there is waited for", "[slime]") {
  Scene scene;
  WriteSingle(scene.Folder(2), scene.now);
  const std::string file = scene.Folder(2) + "/model.safetensors";
  const auto size = fs::file_size(file);
  for (const uintmax_t there : {uintmax_t{0}, uintmax_t{5}, size / 2, size - 1}) {
    CAPTURE(there);
    fs::resize_file(file, there);
    CHECK_THAT(ApplyOnce(scene.local, scene.Folder(2)),
               Contains("UNAVAILABLE") && Contains("is not complete (yet)"));
  }
  // A file of weights beside it: a shard of something that is not published yet.
  WriteSingle(scene.Folder(3), scene.now);
  fs::copy_file(scene.Folder(3) + "/model.safetensors",
                scene.Folder(3) + "/model-00001-of-00001.safetensors");
  CHECK_THAT(ApplyOnce(scene.local, scene.Folder(3)), Contains("it is not published yet"));
  CHECK(Load(scene.local) == scene.now);
}

TEST_CASE("a full version of another model is refused and nothing is written", "[slime]") {
  Scene scene;
  Weights shaped = scene.now;
  shaped["layer.1"].resize(40);
  WriteBase(scene.Folder(2), shaped);
  CHECK_THAT(ApplyOnce(scene.local, scene.Folder(2)), Contains("FAILED_PRECONDITION") &&
                                                          Contains("another type or shape") &&
                                                          Contains("layer.1"));
  Weights others;
  for (const auto& [name, bytes] : scene.now) others["other." + name] = bytes;
  WriteBase(scene.Folder(3), others);
  CHECK_THAT(ApplyOnce(scene.local, scene.Folder(3)),
             Contains("another model") && Contains("it lacks 11 of the 11 tensors"));
  CHECK(Load(scene.local) == scene.now);
}

TEST_CASE("versions with names are applied in the order of their folders' numbers", "[slime]") {
  Scene scene;
  // Rewrites the metadata of a version, as its writer would have done.
  const auto name = [&](uint64_t version, const std::string& own, const std::string& base) {
    auto index = ReadVersionIndex(scene.files, scene.Folder(version));
    REQUIRE(index.ok());
    index->name = own;
    index->delta->base_name = base;
    dws::testing::WriteText(scene.Folder(version) + "/" + safetensors::kIndexFile,
                            *MakeVersionIndex(*index));
  };
  std::vector<Weights> states = {scene.now};
  for (uint64_t version = 2; version <= 4; ++version) {
    states.push_back(Next(states.back(), 20 + version));
    Publish(scene.published, states[version - 2], states.back(), {.version = version});
  }
  name(2, "uid-b", "uid-a");  // version 1 has no name
  name(3, "uid-c", "uid-b");
  name(4, "uid-d", "uid-x");
  CHECK(ApplyOnce(scene.local, scene.Folder(2)) == "applied");
  fs::remove_all(scene.Folder(2));  // its name is remembered
  name(3, "uid-c", "uid-x");
  CHECK_THAT(ApplyOnce(scene.local, scene.Folder(3)),
             Contains("FAILED_PRECONDITION") &&
                 Contains("version 000003 is a delta of 'uid-x', and version 000002 is 'uid-b'"));
  name(3, "uid-c", "uid-b");
  CHECK(ApplyOnce(scene.local, scene.Folder(3), {.proof = ProofRule::kNone}) == "applied");
  CHECK_THAT(ApplyOnce(scene.local, scene.Folder(4)), Contains("a delta of 'uid-x'"));
  CHECK(Load(scene.local) == states[2]);
}

TEST_CASE("a process killed at any step of a replacement leaves the version before or after",
          "[slime]") {
  const std::string failpoint =
      GENERATE("before_intent:kill", "after_tensor:kill@1", "after_tensor:kill@2",
               "after_write:kill", "after_unmark:kill");
  CAPTURE(failpoint);
  Scene scene;
  WriteBase(scene.Folder(2), scene.other);
  REQUIRE(DiesAt("slime.apply." + failpoint, [&] { ApplyOnce(scene.local, scene.Folder(2)); }));
  const bool begun = failpoint != "before_intent:kill";
  CHECK(OpenOnce(scene.local) == (begun ? "version 2" : "version 1"));
  CHECK(Load(scene.local) == (begun ? scene.other : scene.now));
  CHECK(scene.Files().size() == 5);
  CHECK(ApplyOnce(scene.local, scene.Folder(2)) == (begun ? "already" : "applied"));
  CHECK(Load(scene.local) == scene.other);
}

TEST_CASE("a replacement that was interrupted is dropped when another program went further",
          "[slime]") {
  Scene scene;
  WriteBase(scene.Folder(2), scene.other);
  REQUIRE(
      DiesAt("slime.apply.after_tensor:kill@1", [&] { ApplyOnce(scene.local, scene.Folder(2)); }));
  // It copies a full version there, and removes what that lacks.
  for (const std::string& name : scene.Files()) fs::remove(scene.local + "/" + name);
  const Weights third = Next(scene.other, 8);
  WriteSingle(scene.local, third);
  REQUIRE(WriteState(scene.files, scene.local, 3).ok());
  CHECK(OpenOnce(scene.local) == "version 3");
  CHECK(Load(scene.local) == third);
}

}  // namespace dws::slime
