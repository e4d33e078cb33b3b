// Applying versions to local checkpoints, with the process killed at every step.
#include "common/formats/slime_delta/local/apply.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "common/base/failpoint.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

using Catch::Contains;
using dws::testing::ReadFile;

// A local checkpoint at its base, and three published versions.
struct Scene {
  explicit Scene(Encoding second = Encoding::kXor) {
    states = {RandomWeights(1)};
    WriteBase(local, states[0]);
    for (uint64_t version = 1; version <= 3; ++version) {
      states.push_back(Next(states.back(), 10 + version));
      folders.push_back(Publish(published, states[version - 1], states[version],
                                {.version = version,
                                 .encoding = version == 3   ? Encoding::kOverwrite
                                             : version == 2 ? second
                                                            : Encoding::kXor,
                                 .checksum = static_cast<ChecksumFormat>(version % 3)}));
    }
  }
  const std::string& Folder(uint64_t version) const { return folders[version - 1]; }

  TempFolder folder;
  std::string local = folder.File("local");
  std::string published = folder.File("published");
  std::vector<Weights> states;  // by version
  std::vector<std::string> folders;
};

TEST_CASE("versions are applied one after the other and state.json names the last", "[slime]") {
  const Scene scene;
  CHECK(OpenOnce(scene.local) == "version 0");
  for (uint64_t version = 1; version <= 3; ++version) {
    CHECK(ApplyOnce(scene.local, scene.Folder(version)) == "applied");
    CHECK(Load(scene.local) == scene.states[version]);
    const Bytes state = ReadFile(scene.local + "/.weight_sync/state.json");
    CHECK(AsText(state) == R"({"version":"00000)" + std::to_string(version) + "\"}");
    CHECK(ApplyOnce(scene.local, scene.Folder(version)) == "already");
  }
  CHECK(std::filesystem::is_empty(scene.local + "/.weight_sync/redo"));
}

TEST_CASE("one process applies versions without opening the checkpoint again", "[slime]") {
  const Scene scene;
  PosixFileSystem files;
  ThreadPool pool(1);
  const auto local = LocalCheckpoint::Open(files, pool, scene.local, {});
  REQUIRE(local.ok());
  for (uint64_t version = 1; version <= 3; ++version) {
    const auto report = (*local)->Apply(scene.Folder(version));
    REQUIRE(report.ok());
    CHECK(report->tensor_count == scene.states[0].size() - 1);
    CHECK((*local)->version() == version);
    CHECK((*local)->Verify().ok());
  }
  CHECK_THAT(OpenOnce(scene.local), Contains("UNAVAILABLE") && Contains("locked"));
}

TEST_CASE("other keys in state.json are kept", "[slime]") {
  const Scene scene;
  dws::testing::WriteText(scene.local + "/.weight_sync/state.json",
                          R"({"version": "000000", "other": {"a": [1]}})");
  CHECK(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
  const Bytes state = ReadFile(scene.local + "/.weight_sync/state.json");
  CHECK(AsText(state) == R"({"other":{"a":[1]},"version":"000001"})");
}

TEST_CASE("a version that state.json has as a number is understood", "[slime]") {
  const Scene scene;
  const std::string state = scene.local + "/.weight_sync/state.json";
  dws::testing::WriteText(state, R"({"version": 0})");
  CHECK(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
  CHECK(AsText(ReadFile(state)) == R"({"version":"000001"})");
}

TEST_CASE("a checkpoint that another program has left in the middle of a change is refused",
          "[slime]") {
  const Scene scene;
  const std::string state = scene.local + "/.weight_sync/state.json";
  dws::testing::WriteText(state, R"({"version": "000000", "valid": false})");
  CHECK_THAT(ApplyOnce(scene.local, scene.Folder(1)),
             Contains("DATA_LOSS") && Contains("\"valid\" is not true"));
  CHECK(Load(scene.local) == scene.states[0]);
  dws::testing::WriteText(state, R"({"version": "000000", "valid": true})");
  CHECK(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
  CHECK(AsText(ReadFile(state)) == R"({"valid":true,"version":"000001"})");
}

TEST_CASE("a version that does not follow the local one is refused and nothing is written",
          "[slime]") {
  const Scene scene;
  CHECK_THAT(ApplyOnce(scene.local, scene.Folder(2)),
             Contains("FAILED_PRECONDITION") && Contains("it needs version 000001"));
  CHECK(Load(scene.local) == scene.states[0]);
}

TEST_CASE("a full checkpoint starts a new chain", "[slime]") {
  const Scene scene;
  REQUIRE(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
  const Weights other = Next(RandomWeights(1), 99);
  const std::string full = scene.published + "/weight_v000009";
  WriteBase(full, other);
  CHECK(ApplyOnce(scene.local, full) == "applied");
  CHECK(Load(scene.local) == other);
  CHECK(ApplyOnce(scene.local, full) == "already");
  const Weights next = Next(other, 100);
  const std::string delta = Publish(scene.published, other, next, {.version = 10});
  CHECK(ApplyOnce(scene.local, delta) == "applied");
  CHECK(Load(scene.local) == next);
}

TEST_CASE("files that another checkpoint may share by a link are never changed", "[slime]") {
  const Scene scene;
  const std::string other = scene.folder.File("other");
  std::filesystem::create_directories(other);
  const bool hard = GENERATE(false, true);
  for (const auto& item : std::filesystem::directory_iterator(scene.local)) {
    const std::filesystem::path link = other / item.path().filename();
    if (hard) {
      std::filesystem::create_hard_link(item.path(), link);
    } else {
      std::filesystem::create_symlink(item.path(), link);
    }
  }
  CHECK_THAT(ApplyOnce(other, scene.Folder(1)),
             Contains("FAILED_PRECONDITION") && Contains("is a link"));
  CHECK_FALSE(std::filesystem::exists(other + "/.weight_sync"));
  CHECK(Load(scene.local) == scene.states[0]);
}

TEST_CASE("a delta of another stream of a sender is refused even if its base is not there",
          "[slime]") {
  const Scene scene;
  const auto publish = [&](uint64_t version, const std::string& stream) {
    return Publish(scene.folder.File(stream), scene.states[version - 1], scene.states[version],
                   {.version = version, .extra = {{kStreamKey, stream}}});
  };
  REQUIRE(ApplyOnce(scene.local, publish(1, "first")) == "applied");
  const std::string other = publish(2, "second");
  CHECK_THAT(ApplyOnce(scene.local, other),
             Contains("is of stream second") && Contains("is of stream first"));
  CHECK(Load(scene.local) == scene.states[1]);
  // After that only a full checkpoint is accepted.
  CHECK_THAT(ApplyOnce(scene.local, publish(2, "first")), Contains("another run"));
}

TEST_CASE("a delta of the same stream is applied without its base's folder", "[slime]") {
  const Scene scene;
  for (const uint64_t version : {1, 2}) {
    const std::string path =
        Publish(scene.folder.File("folder" + std::to_string(version)), scene.states[version - 1],
                scene.states[version], {.version = version, .extra = {{kStreamKey, "first"}}});
    CHECK(ApplyOnce(scene.local, path) == "applied");
  }
}

TEST_CASE("a base whose folder cannot be read blocks the next delta", "[slime]") {
  const Scene scene;
  REQUIRE(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
  dws::testing::WriteText(scene.Folder(1) + "/" + safetensors::kIndexFile, "{");
  CHECK_THAT(ApplyOnce(scene.local, scene.Folder(2)),
             Contains("DATA_LOSS") && Contains("applied here"));
  CHECK(Load(scene.local) == scene.states[1]);
  std::filesystem::remove_all(scene.Folder(1));
  CHECK(ApplyOnce(scene.local, scene.Folder(2), {.proof = ProofRule::kNone}) == "applied");
}

TEST_CASE("a tensor that already has its new bytes is accepted", "[slime]") {
  const Scene scene;
  // The state that another program leaves if it dies between two tensors.
  Weights part = scene.states[0];
  part["layer.3"] = scene.states[1].at("layer.3");
  std::filesystem::remove_all(scene.local);
  WriteBase(scene.local, part);
  CHECK(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
  CHECK(Load(scene.local) == scene.states[1]);
}

TEST_CASE("damage in a version folder is refused and nothing is written", "[slime]") {
  const Scene scene;
  std::mt19937_64 random(7);
  for (const auto& item : std::filesystem::directory_iterator(scene.Folder(1))) {
    const std::string path = item.path();
    const Bytes sound = ReadFile(path);
    for (int round = 0; round < 12; ++round) {
      Bytes damaged = sound;
      damaged[random() % damaged.size()] ^= std::byte(1 + random() % 255);
      dws::testing::WriteFile(path, damaged);
      const std::string result = ApplyOnce(scene.local, scene.Folder(1));
      if (result == "applied") {  // the byte has no meaning, for example a space in JSON
        REQUIRE(Load(scene.local) == scene.states[1]);
        std::filesystem::remove_all(scene.local);
        WriteBase(scene.local, scene.states[0]);
      }
      REQUIRE(Load(scene.local) == scene.states[0]);
    }
    dws::testing::WriteFile(path, sound);
  }
  CHECK(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
}

TEST_CASE("a folder without a checkpoint is refused and stays empty", "[slime]") {
  const TempFolder folder;
  CHECK_THAT(OpenOnce(folder.path()), Contains("NOT_FOUND"));
  CHECK(std::filesystem::is_empty(folder.path()));
}

std::vector<std::string> FailpointsOfApply() {
  std::vector<std::string> names;
  for (const std::string_view name : kFailpoints) {
    if (name.starts_with("slime.")) names.emplace_back(name);
  }
  return names;
}

// Killed at a step, or at a step of the recovery from that: the result is one whole version.
TEST_CASE("a process killed at any step leaves the version before or the version after",
          "[slime]") {
  const Encoding encoding = GENERATE(Encoding::kXor, Encoding::kOverwrite);
  for (const std::string& name : FailpointsOfApply()) {
    for (const std::string times : {"", "@3", "@40"}) {
      const bool many = name.ends_with("tensor");
      if (!times.empty() && (!many || (times == "@40" && !name.ends_with("inside_tensor")))) {
        continue;
      }
      INFO(NameOf(encoding) << " " << name << ":kill" << times);
      const Scene scene(encoding);
      REQUIRE(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
      REQUIRE(DiesAt(name + ":kill" + times, [&] { ApplyOnce(scene.local, scene.Folder(2)); }));
      const bool marked = name != "slime.write.before_index" && name != "slime.apply.before_intent";
      const std::string opened = OpenOnce(scene.local);
      CHECK(opened == (marked ? "version 2" : "version 1"));
      CHECK(Load(scene.local) == scene.states[marked ? 2 : 1]);
      CHECK(ApplyOnce(scene.local, scene.Folder(2)) == (marked ? "already" : "applied"));
      CHECK(ApplyOnce(scene.local, scene.Folder(3)) == "applied");
      CHECK(Load(scene.local) == scene.states[3]);
      CHECK(std::filesystem::is_empty(scene.local + "/.weight_sync/redo"));
    }
  }
}

TEST_CASE("a process killed during a recovery is recovered from", "[slime]") {
  const Encoding encoding = GENERATE(Encoding::kXor, Encoding::kOverwrite);
  for (const std::string& again : FailpointsOfApply()) {
    if (again == "slime.write.before_index" || again.ends_with("_intent")) continue;
    INFO(NameOf(encoding) << " " << again);
    const Scene scene(encoding);
    REQUIRE(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
    REQUIRE(DiesAt("slime.apply.inside_tensor:kill@20",
                   [&] { ApplyOnce(scene.local, scene.Folder(2)); }));
    REQUIRE(DiesAt(again + ":kill", [&] { OpenOnce(scene.local); }));
    // The version folder is gone: the recovery needs only the redo log.
    std::filesystem::remove_all(scene.published);
    CHECK(OpenOnce(scene.local) == "version 2");
    CHECK(Load(scene.local) == scene.states[2]);
  }
}

TEST_CASE("an error at any step is reported and the next attempt completes or repeats the work",
          "[slime]") {
  for (const std::string& name : FailpointsOfApply()) {
    if (name == "slime.apply.inside_tensor") continue;  // kill only
    INFO(name);
    const Scene scene;
    REQUIRE(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
    ::setenv("DWS_FAILPOINT", (name + ":error@1").c_str(), 1);
    const std::string result = ApplyOnce(scene.local, scene.Folder(2));
    ::unsetenv("DWS_FAILPOINT");
    CHECK_THAT(result, Contains("INTERNAL"));
    CHECK_THAT(ApplyOnce(scene.local, scene.Folder(2)), Contains("applied") || Contains("already"));
    CHECK(Load(scene.local) == scene.states[2]);
  }
}

}  // namespace
}  // namespace dws::slime
