// Which run the versions in a folder belong to: for copies, for folders with only the newest
// versions, and for checkpoints that another program has changed.
#include "common/formats/slime_delta/local/run_check.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "common/formats/checkpoint/settled.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "common/formats/slime_delta/local/redo.h"
#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;
using nlohmann::json;

// Two runs from one base, equal in their second and third versions, and a checkpoint that is at
// version 3 of the first. Both change one tensor per version that the other does not.
struct Scene {
  Scene() {
    WriteBase(local, base);
    states = PublishRun(ours, base, {"layer.0", "", "", "layer.2"});
    others = PublishRun(theirs, base, {"layer.1", "", "", "layer.2"});
    for (const uint64_t version : {1, 2, 3}) REQUIRE(Apply(ours, version) == "applied");
  }
  std::string Apply(const std::string& versions, uint64_t version) const {
    return ApplyOnce(local, PathOf(versions, version));
  }
  static std::string PathOf(const std::string& versions, uint64_t version) {
    return versions + "/" + VersionFolderName(version);
  }
  static void Remove(const std::string& versions, std::initializer_list<uint64_t> numbers) {
    for (const uint64_t version : numbers) fs::remove_all(PathOf(versions, version));
  }
  // Replaces the applied folder of `version` by the one in `from`, with a time one second later.
  void WriteAgain(uint64_t version, const std::string& from) const {
    const std::string aside = folder.File("aside");
    fs::copy(PathOf(from, version), aside);
    const auto then = fs::last_write_time(PathOf(ours, version) + "/" + safetensors::kIndexFile);
    Remove(ours, {version});
    fs::rename(aside, PathOf(ours, version));
    fs::last_write_time(PathOf(ours, version) + "/" + safetensors::kIndexFile,
                        then + std::chrono::seconds(1));
  }
  // A copy of the folder as `cp -r` (new times) or `cp -a` (times kept) makes it.
  static std::string Copy(const std::string& versions, bool times_kept) {
    std::string copy = versions + ".copy";
    fs::copy(versions, copy, fs::copy_options::recursive);
    if (!times_kept) return copy;
    for (const auto& item : fs::recursive_directory_iterator(versions)) {
      fs::last_write_time(copy + item.path().string().substr(versions.size()),
                          fs::last_write_time(item));
    }
    return copy;
  }
  std::string DigestsPath() const { return local + "/.weight_sync/digests.json"; }
  json Digests() const { return json::parse(AsText(dws::testing::ReadFile(DigestsPath()))); }
  // Leaves the checkpoint as a program that keeps no digests brings it to its version.
  void ForgetDigests() const { fs::remove(DigestsPath()); }

  TempFolder folder;
  Weights base = RandomWeights(1);
  std::string local = folder.File("local");
  std::string ours = folder.File("ours");
  std::string theirs = folder.File("theirs");
  std::vector<Weights> states;  // by version
  std::vector<Weights> others;
};

TEST_CASE("the folder that was applied is the same run under another path too", "[slime]") {
  const Scene scene;
  const std::string moved = scene.folder.File("moved");
  fs::rename(scene.ours, moved);
  CHECK(scene.Apply(moved, 4) == "applied");
  CHECK(Load(scene.local) == scene.states[4]);
}

TEST_CASE("a complete copy is the same run whatever its times", "[slime]") {
  const Scene scene;
  const std::string copy = Scene::Copy(scene.ours, false);
  CHECK(scene.Apply(copy, 4) == "applied");
  CHECK(Load(scene.local) == scene.states[4]);
}

TEST_CASE("a copy of the newest versions with their times is the same run", "[slime]") {
  const Scene scene;
  Scene::Remove(scene.ours, {1, 2});
  const std::string copy = Scene::Copy(scene.ours, true);
  CHECK(scene.Apply(copy, 4) == "applied");
  CHECK(Load(scene.local) == scene.states[4]);
}

TEST_CASE("empty versions without their times do not prove that a copy is the same run",
          "[slime]") {
  const Scene scene;
  const std::string copy = Scene::Copy(scene.ours, false);
  const std::string aside = scene.folder.File("aside");
  fs::rename(Scene::PathOf(copy, 1), aside);
  CHECK_THAT(scene.Apply(copy, 4), Contains("FAILED_PRECONDITION") && Contains("may have begun") &&
                                       Contains("version 000003 was written again"));
  CHECK(Load(scene.local) == scene.states[3]);
  // Nor is it proved when these versions are gone too.
  Scene::Remove(copy, {2, 3});
  CHECK_THAT(scene.Apply(copy, 4), Contains("may have begun"));
  // A run that was doubted and not refused can still be proved.
  CHECK(scene.Apply(scene.ours, 4) == "applied");
  CHECK_FALSE(scene.Digests().contains("doubted"));
}

TEST_CASE("the stream id of a dws-sender proves that a folder is the same run", "[slime]") {
  const TempFolder folder;
  const std::string local = folder.File("local");
  const Weights base = RandomWeights(1);
  WriteBase(local, base);
  const auto publish = [&](uint64_t version, const std::string& stream) {
    const std::string versions = folder.File("of" + stream);
    std::map<std::string, std::string> extra;
    if (!stream.empty()) extra[kStreamKey] = stream;
    return Publish(versions, base, version == 3 ? Touched(base, "layer.2") : base,
                   {.version = version, .extra = extra});
  };
  for (const uint64_t version : {1, 2})
    REQUIRE(ApplyOnce(local, publish(version, "s")) == "applied");
  const std::string third = publish(3, "s");
  fs::remove_all(folder.File("ofs") + "/weight_v000001");
  fs::copy(folder.File("ofs"), folder.File("copy"), fs::copy_options::recursive);
  CHECK(ApplyOnce(local, folder.File("copy") + "/weight_v000003") == "applied");
  // A writer that names no stream is another writer.
  for (const uint64_t version : {1, 2, 3}) publish(version, "");
  const std::string fourth = Publish(folder.File("of"), base, base, {.version = 4});
  CHECK_THAT(ApplyOnce(local, fourth), Contains("is of another writer") && Contains("another run"));
}

TEST_CASE("a writer that removes applied versions but the newest is still followed", "[slime]") {
  const Scene scene;
  Scene::Remove(scene.ours, {1, 2});
  CHECK(scene.Apply(scene.ours, 4) == "applied");
  CHECK(Load(scene.local) == scene.states[4]);
}

TEST_CASE("a new run in a folder is detected by its first version and stays refused", "[slime]") {
  const Scene scene;
  PosixFileSystem files;
  ThreadPool pool(1);
  Scene::Remove(scene.theirs, {2, 3, 4});
  {
    const auto local = LocalCheckpoint::Open(files, pool, scene.local, {});
    REQUIRE(local.ok());
    CHECK_THAT(ToString((*local)->CheckRun(scene.theirs)), Contains("version 000001 there is not"));
  }
  CHECK(scene.Digests().contains("refused"));
  CHECK_THAT(scene.Apply(scene.ours, 4), Contains("another run"));
}

TEST_CASE("a new run is detected even if all its versions are below the local one", "[slime]") {
  const Scene scene;
  PosixFileSystem files;
  ThreadPool pool(1);
  std::vector<std::string> seen;
  const auto local =
      LocalCheckpoint::Open(files, pool, scene.local,
                            {.on_access = [&](const std::string& path) { seen.push_back(path); }});
  REQUIRE(local.ok());
  const auto look = [&] { return ToString((*local)->CheckRun(scene.ours)); };
  const auto read_of = [&](uint64_t version) {  // not only the time of its index
    return std::count(seen.begin(), seen.end(), Scene::PathOf(scene.ours, version)) > 0;
  };
  REQUIRE(look() == "OK");
  CHECK_FALSE((read_of(1) || read_of(2) || read_of(3)));

  // The same version written again is read once. A removed version is accepted.
  scene.WriteAgain(1, scene.ours);
  REQUIRE(look() == "OK");
  CHECK((read_of(1) && !read_of(2) && !read_of(3)));
  Scene::Remove(scene.ours, {2});
  seen.clear();
  REQUIRE(look() == "OK");
  CHECK_FALSE((read_of(1) || read_of(3)));
  // It is not read again after the next version has been applied.
  REQUIRE((*local)->Apply(Scene::PathOf(scene.ours, 4)).ok());
  seen.clear();
  REQUIRE(look() == "OK");
  CHECK_FALSE(read_of(1));

  scene.WriteAgain(1, scene.theirs);
  CHECK_THAT(look(), Contains("version 000001 there is not the one that was applied here") &&
                         Contains("another run"));
  CHECK(scene.Digests().contains("refused"));
}

TEST_CASE("versions before a full checkpoint prove nothing and later ones are waited for",
          "[slime]") {
  const Scene scene;
  WriteBase(Scene::PathOf(scene.ours, 9), scene.states[4]);
  REQUIRE(scene.Apply(scene.ours, 9) == "applied");
  const Weights tenth = Touched(scene.states[4], "layer.5");
  const std::string next = scene.folder.File("next");
  Publish(next, scene.base, scene.base, {.version = 2});
  PosixFileSystem files;
  ThreadPool pool(1);
  {
    const auto local = LocalCheckpoint::Open(files, pool, scene.local, {});
    REQUIRE(local.ok());
    CHECK_THAT(ToString((*local)->CheckRun(next)), Contains("has versions up to 2"));
  }
  // This folder was doubted, so the next version alone does not prove it.
  const std::string path = Publish(next, scene.states[4], tenth, {.version = 10});
  fs::remove_all(Scene::PathOf(next, 2));
  CHECK_THAT(ApplyOnce(scene.local, path), Contains("has versions up to 2"));
  fs::copy(Scene::PathOf(scene.ours, 9), Scene::PathOf(next, 9));
  CHECK(ApplyOnce(scene.local, path) == "applied");  // it has every version since the full one
  CHECK(Load(scene.local) == tenth);
}

TEST_CASE("a refusal stays in effect when the checkpoint is opened again", "[slime]") {
  const Scene scene;
  REQUIRE_THAT(scene.Apply(scene.theirs, 4), Contains("version 000001 there is not"));
  CHECK_THAT(scene.Apply(scene.theirs, 4), Contains("another run"));
  CHECK_THAT(scene.Apply(scene.ours, 4), Contains("another run") && Contains(scene.theirs));
  CHECK(Load(scene.local) == scene.states[3]);
  // A full checkpoint of either run ends it.
  WriteBase(Scene::PathOf(scene.theirs, 5), scene.others[4]);
  CHECK(scene.Apply(scene.theirs, 5) == "applied");
  CHECK(Load(scene.local) == scene.others[4]);
  CHECK_FALSE(scene.Digests().contains("refused"));
  const Weights sixth = Touched(scene.others[4], "layer.6");
  const std::string path = Publish(scene.theirs, scene.others[4], sixth, {.version = 6});
  CHECK(ApplyOnce(scene.local, path) == "applied");
}

TEST_CASE("an applied version that is damaged now blocks the next version", "[slime]") {
  const Scene scene;
  dws::testing::WriteText(Scene::PathOf(scene.ours, 3) + "/" + safetensors::kIndexFile, "{");
  CHECK_THAT(scene.Apply(scene.ours, 4), Contains("DATA_LOSS") && Contains("applied here"));
  CHECK_FALSE(scene.Digests().contains("refused"));
}

TEST_CASE("a checkpoint advanced by another program adopts its folder if the tensors match",
          "[slime]") {
  const Scene scene;
  scene.ForgetDigests();
  const bool pruned = GENERATE(false, true);
  if (pruned) Scene::Remove(scene.ours, {1, 2});
  CHECK(scene.Apply(scene.ours, 4) == "applied");
  CHECK(Load(scene.local) == scene.states[4]);
  const json digests = scene.Digests();
  CHECK(digests["applied"].size() == 2);  // the version before and the new one
  CHECK_FALSE(digests.contains("since"));
}

TEST_CASE("a checkpoint advanced by another program refuses the folder of another run", "[slime]") {
  const Scene scene;
  scene.ForgetDigests();
  // Its last version is equal; the one before it has a tensor that differs here.
  CHECK_THAT(scene.Apply(scene.theirs, 4),
             Contains("another run") && Contains("after version 000001 tensor 'layer.1'"));
  CHECK_THAT(scene.Apply(scene.ours, 4), Contains("another run"));
  CHECK(Load(scene.local) == scene.states[3]);
}

TEST_CASE("a checkpoint that is cut while it is compared is not taken for another run", "[slime]") {
  const Scene scene;
  scene.ForgetDigests();
  PosixFileSystem files;
  ThreadPool pool(2);
  std::map<std::string, dws::testing::Bytes> whole;
  for (const auto& item : fs::directory_iterator(scene.local)) {
    if (item.path().extension() != ".safetensors") continue;
    whole[item.path()] = dws::testing::ReadFile(item.path());
  }
  // When the version is opened: a file that was cut before has not the size that it had.
  const auto cut_all = [&](const std::string&) {
    for (const auto& [path, bytes] : whole) fs::resize_file(path, 0);
  };
  auto opened = LocalCheckpoint::Open(files, pool, scene.local, {.on_access = cut_all});
  REQUIRE(opened.ok());
  const Status cut = (*opened)->Apply(Scene::PathOf(scene.ours, 4)).status();
  CHECK(absl::IsDataLoss(cut));
  CHECK_THAT(ToString(cut), Contains("bytes are missing"));
  opened->reset();
  for (const auto& [path, bytes] : whole) dws::testing::WriteFile(path, bytes);
  CHECK(scene.Apply(scene.ours, 4) == "applied");
}

TEST_CASE("damaged digests are refused", "[slime]") {
  const Scene scene;
  const json sound = scene.Digests();
  for (const auto& [key, value] :
       std::map<std::string, json>{{"chain", 1},
                                   {"since", "x"},
                                   {"applied", json::object({{"000001", "a b"}})},
                                   {"applied", json::object({{"one", "a"}})},
                                   {"refused", 3}}) {
    json damaged = sound;
    damaged[key] = value;
    dws::testing::WriteText(scene.DigestsPath(), damaged.dump());
    CHECK_THAT(OpenOnce(scene.local), Contains("DATA_LOSS") && Contains("digests.json"));
  }
  for (const char* const key : {"chain", "applied", "tensors"}) {
    json damaged = sound;
    damaged.erase(key);
    dws::testing::WriteText(scene.DigestsPath(), damaged.dump());
    CHECK_THAT(OpenOnce(scene.local), Contains("DATA_LOSS") && Contains("digests.json"));
  }
}

}  // namespace
}  // namespace dws::slime
