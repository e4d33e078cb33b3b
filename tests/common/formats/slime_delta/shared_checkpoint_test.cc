// A local checkpoint that another program of slime's format changes too, one at a time with us.
#include <catch2/catch.hpp>
#include <filesystem>
#include <string>

#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

using Catch::Contains;

// A local checkpoint at its base, and three published versions.
struct Scene {
  Scene() {
    states = PublishRun(published, RandomWeights(1), {"layer.1", "layer.2", "layer.3"});
    WriteBase(local, states[0]);
  }
  std::string Folder(uint64_t version) const {
    return published + "/" + VersionFolderName(version);
  }
  std::unique_ptr<LocalCheckpoint> Open() {
    auto opened = LocalCheckpoint::Open(files, pool, local, {});
    INFO(opened.status());
    REQUIRE(opened.ok());
    return *std::move(opened);
  }
  // The lock that every program of the format takes.
  Result<std::unique_ptr<FileLock>> Lock() { return files.Lock(local + "/.weight_sync/lock"); }
  // What such a program does under the lock, without our digests and records: writes the weights of
  // a version into the files, then its state.
  void BringTo(uint64_t version) {
    const auto lock = Lock();
    REQUIRE(lock.ok());
    Patch(version);
    REQUIRE(WriteState(files, local, version).ok());
  }
  // Only the weights, in place.
  void Patch(uint64_t version) {
    const auto checkpoint = safetensors::Checkpoint::Open(local, FileAccess::kWritable);
    REQUIRE(checkpoint.ok());
    for (const safetensors::CheckpointTensor& tensor : checkpoint->tensors()) {
      const Bytes& bytes = states[version].at(tensor.name);
      std::copy(bytes.begin(), bytes.end(), checkpoint->Writable(tensor).begin());
    }
    REQUIRE(checkpoint->Sync().ok());
  }

  TempFolder folder;
  std::string local = folder.File("local");
  std::string published = folder.File("published");
  std::vector<Weights> states;  // by version
  PosixFileSystem files;
  ThreadPool pool{1};
};

}  // namespace

TEST_CASE("the lock is held only until it is released and is taken again", "[slime]") {
  Scene scene;
  const auto local = scene.Open();
  CHECK_THAT(ToString(scene.Lock().status()), Contains("is locked by process"));
  REQUIRE(local->Apply(scene.Folder(1)).ok());
  for (uint64_t version = 2; version <= 3; ++version) {
    local->Release();
    local->Release();
    {
      const auto lock = scene.Lock();
      REQUIRE(lock.ok());
      CHECK_THAT(ToString(local->Retake()),
                 Contains("UNAVAILABLE") &&
                     Contains("is locked by process " + std::to_string(::getpid()) + " ("));
    }
    REQUIRE(local->Retake().ok());
    REQUIRE(local->Retake().ok());
    CHECK_FALSE(scene.Lock().ok());
    const auto report = local->Apply(scene.Folder(version));
    INFO(report.status());
    REQUIRE(report.ok());
  }
  CHECK(Load(scene.local) == scene.states[3]);
}

TEST_CASE("another receiver is kept out also while the lock is released", "[slime]") {
  Scene scene;
  auto local = scene.Open();
  local->Release();
  CHECK_THAT(OpenOnce(scene.local), Contains("UNAVAILABLE") && Contains("dws_lock is locked by"));
  local.reset();
  CHECK(OpenOnce(scene.local) == "version 0");
}

TEST_CASE("a checkpoint that another program changed meanwhile is opened again at its version",
          "[slime]") {
  Scene scene;
  auto local = scene.Open();
  REQUIRE(local->Apply(scene.Folder(1)).ok());
  local->Release();
  scene.BringTo(2);
  CHECK_THAT(ToString(local->Retake()), Contains("ABORTED") && Contains(scene.local));
  local.reset();
  local = scene.Open();
  CHECK(local->version() == 2);
  REQUIRE(local->CheckRun(scene.published).ok());
  REQUIRE(local->Apply(scene.Folder(3)).ok());
  CHECK(Load(scene.local) == scene.states[3]);
}

TEST_CASE("a change that another program left unfinished is found before the next version",
          "[slime]") {
  Scene scene;
  auto local = scene.Open();
  REQUIRE(local->Apply(scene.Folder(1)).ok());
  local->Release();
  scene.Patch(2);  // and its state is not written
  CHECK(absl::IsAborted(local->Retake()));
  local.reset();
  CHECK_THAT(OpenOnce(scene.local), Contains("DATA_LOSS") && Contains("layer.2"));
}

TEST_CASE("a change of ours that was interrupted is dropped when another program went further",
          "[slime]") {
  Scene scene;
  CHECK(ApplyOnce(scene.local, scene.Folder(1)) == "applied");
  CHECK(DiesAt("slime.apply.after_intent:kill", [&] { ApplyOnce(scene.local, scene.Folder(2)); }));
  SECTION("it is completed where the state is still ours") {
    CHECK(OpenOnce(scene.local) == "version 2");
    CHECK(Load(scene.local) == scene.states[2]);
  }
  SECTION("it is dropped where the state is another's") {
    scene.BringTo(3);
    CHECK(OpenOnce(scene.local) == "version 3");
    CHECK(OpenOnce(scene.local) == "version 3");
    CHECK(Load(scene.local) == scene.states[3]);
  }
}

}  // namespace dws::slime
