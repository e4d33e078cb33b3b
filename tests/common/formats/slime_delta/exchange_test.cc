// Version folders that are exchanged, or removed and written again, while they are being read.
#include <fcntl.h>

#include <array>
#include <catch2/catch.hpp>
#include <cstdio>
#include <filesystem>
#include <functional>
#include <string>

#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

void Exchange(const std::string& one, const std::string& other) {
  REQUIRE(::renameat2(AT_FDCWD, one.c_str(), AT_FDCWD, other.c_str(), RENAME_EXCHANGE) == 0);
}

// A base, and version 1 of two runs from it. Both runs change 25 tensors, in the same shards.
struct Scene {
  struct Sizes {
    size_t tensor_bytes = 64;
    uint64_t shard_bytes_max = 300;
  };
  Scene() : Scene(Sizes()) {}
  explicit Scene(const Sizes& sizes) {
    std::mt19937_64 random(3);
    for (int i = 0; i < 25; ++i) {
      for (Weights* const weights : {&base, &one, &other}) {
        (*weights)["layer." + std::to_string(i)] =
            dws::testing::RandomBytes(random, sizes.tensor_bytes);
      }
    }
    WriteBase(local, base);
    const VersionWriteOptions options{.version = 1, .shard_bytes_max = sizes.shard_bytes_max};
    path = Publish(folder.File("one"), base, one, options);
    spare = Publish(folder.File("other"), base, other, options);
  }

  // Opens and applies; calls `change` before access number `at`. Returns "applied" or the error.
  std::string ApplyDuring(size_t at, const std::function<void()>& change) {
    accesses = 0;
    return ApplyOnce(local, path, {.on_access = [&](const std::string&) {
                       if (accesses++ == at) change();
                     }});
  }

  TempFolder folder;
  Weights base, one, other;
  std::string local = folder.File("local");
  std::string path;   // what is applied
  std::string spare;  // version 1 of the other run
  size_t accesses = 0;
};

constexpr auto kOver = fs::copy_options::recursive | fs::copy_options::overwrite_existing;

// Replaces the folder at Scene::path by the other run's.
using Change = void (*)(Scene&);
void ExchangeThem(Scene& scene) { Exchange(scene.path, scene.spare); }
void ExchangeTheirFolders(Scene& scene) {
  Exchange(scene.folder.File("one"), scene.folder.File("other"));
}
void RemoveAndWrite(Scene& scene) {
  fs::remove_all(scene.path);
  fs::copy(scene.spare, scene.path);
}
void EmptyAndWrite(Scene& scene) {  // keeps the folder
  for (const auto& item : fs::directory_iterator(scene.path)) fs::remove(item.path());
  fs::copy(scene.spare, scene.path, kOver);
}
void WriteOver(Scene& scene) {  // keeps the folder and its files
  fs::copy(scene.spare, scene.path, kOver);
}
void Remove(Scene& scene) { fs::remove_all(scene.path); }

TEST_CASE("a version replaced by another run's at any access is applied whole or not at all",
          "[slime]") {
  const Change change =
      GENERATE(Change(ExchangeThem), Change(ExchangeTheirFolders), Change(RemoveAndWrite),
               Change(EmptyAndWrite), Change(WriteOver), Change(Remove));
  size_t dropped = 0;
  size_t at = 0;
  for (;; ++at) {
    INFO("access " << at);
    Scene scene;
    const std::string result = scene.ApplyDuring(at, [&] { change(scene); });
    if (at >= scene.accesses) break;  // every access was tried
    const Weights held = Load(scene.local);
    if (result == "applied") {
      CHECK((held == scene.one || held == scene.other));
      continue;
    }
    ++dropped;
    CHECK_THAT(result, Contains("UNAVAILABLE"));
    CHECK(held == scene.base);
    if (change == Remove) continue;
    // The next attempt applies the folder that is there now.
    CHECK(ApplyOnce(scene.local, scene.path) == "applied");
    CHECK(Load(scene.local) == scene.other);
  }
  CHECK(at > 20);  // folder, index, list and shards, each of them twice
  CHECK(dropped > 15);
}

TEST_CASE("a folder that is exchanged and exchanged back is applied as one version", "[slime]") {
  for (size_t at = 0; at < 25; ++at) {
    INFO("access " << at);
    Scene scene;
    size_t accesses = 0;
    const std::string result =
        ApplyOnce(scene.local, scene.path, {.on_access = [&](const std::string&) {
                    if (accesses == at || accesses == at + 3) ExchangeThem(scene);
                    ++accesses;
                  }});
    const Weights held = Load(scene.local);
    if (result == "applied") {
      CHECK((held == scene.one || held == scene.other));
    } else {
      CHECK_THAT(result, Contains("UNAVAILABLE"));
      CHECK(held == scene.base);
    }
  }
}

// Another process exchanges the folders as fast as it can.
class Exchanger {
 public:
  explicit Exchanger(const Scene& scene) {
    constexpr int kExchangesMax = 1'000'000;  // it is killed before it reaches this
    std::array<int, 2> begun = {};
    REQUIRE(::pipe(begun.data()) == 0);
    child_ = ::fork();
    REQUIRE(child_ >= 0);
    for (int i = 0; child_ == 0 && i < kExchangesMax; ++i) {
      ::renameat2(AT_FDCWD, scene.path.c_str(), AT_FDCWD, scene.spare.c_str(), RENAME_EXCHANGE);
      if (i == 100 && ::write(begun[1], "", 1) != 1) break;
    }
    if (child_ == 0) ::_exit(0);
    char byte = 0;
    CHECK(::read(begun[0], &byte, 1) == 1);
    for (const int fd : begun) ::close(fd);
  }
  ~Exchanger() {
    ::kill(child_, SIGKILL);
    ::waitpid(child_, nullptr, 0);
  }

 private:
  pid_t child_ = -1;
};

TEST_CASE("of two folders that are exchanged continuously one is applied whole", "[slime]") {
  constexpr int kRounds = 10;
  constexpr int kTriesMax = 1000;
  for (int round = 0; round < kRounds; ++round) {
    const Scene scene({.tensor_bytes = 200'000, .shard_bytes_max = 1});  // one shard per tensor
    const Exchanger exchanger(scene);
    std::string result;
    for (int i = 0; i < kTriesMax && result != "applied"; ++i) {
      result = ApplyOnce(scene.local, scene.path);
      const Weights held = Load(scene.local);
      if (result == "applied") {
        CHECK((held == scene.one || held == scene.other));
      } else {
        REQUIRE_THAT(result, Contains("UNAVAILABLE"));
        CHECK(held == scene.base);
      }
    }
  }
}

}  // namespace
}  // namespace dws::slime
