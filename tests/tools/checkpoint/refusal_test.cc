// Inputs that do not belong together are refused before anything is written, with the reason.
#include <unistd.h>

#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <vector>

#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/apply.h"

namespace dws::checkpoint {
namespace {

Status ApplyTo(Scene& scene, const std::string& base, const std::string& delta) {
  const std::vector<std::string> deltas = {delta};
  const std::string out = scene.folder.File("out");
  const Status status =
      ApplyDeltas(scene.files, {.base = base, .deltas = deltas, .out = out}, scene.pool, NoProgress)
          .status();
  CHECK(std::filesystem::exists(out) == status.ok());
  for (const auto& entry : std::filesystem::directory_iterator(scene.folder.path())) {
    CHECK(entry.path().string().find(".partial") == std::string::npos);
  }
  return status;
}

bool Has(const Status& status, const std::string& text) {
  UNSCOPED_INFO(status.ToString());
  return status.ToString().find(text) != std::string::npos;
}

void Overwrite(const std::string& path, uint64_t offset, char byte) {
  std::fstream stream(path, std::ios::binary | std::ios::in | std::ios::out);
  stream.seekp(static_cast<std::streamoff>(offset));
  stream.put(byte);
}

}  // namespace

TEST_CASE("a delta over another base names the tensors that differ", "[checkpoint]") {
  Scene scene;
  const auto profile = GENERATE(DeltaProfile::kFast, DeltaProfile::kWan);
  const std::string delta = scene.Delta(profile);
  TestModel other = scene.a;
  other["embed.weight"].bytes[1000] ^= std::byte{1};
  other["scale"].bytes[0] ^= std::byte{1};
  WriteFolder(other, scene.folder.File("other"), kSmallShard);
  const Status refused = ApplyTo(scene, scene.folder.File("other"), delta);
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(Has(refused, "'embed.weight', 'scale'"));
}

TEST_CASE("another base is detected in a tensor that the delta does not change", "[checkpoint]") {
  Scene scene;
  const std::string delta = scene.Delta();
  TestModel other = scene.a;
  other["frozen.weight"].bytes[7] ^= std::byte{1};
  WriteFolder(other, scene.folder.File("other"), kSmallShard);
  const Status refused = ApplyTo(scene, scene.folder.File("other"), delta);
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(Has(refused, "others are not"));
}

TEST_CASE("a delta for other tensors is refused", "[checkpoint]") {
  Scene scene;
  const std::string delta = scene.Delta();
  TestModel other = scene.a;
  other["more.weight"] = RandomTensor(safetensors::FileDType::kBF16, {4, 4}, 9);
  WriteFolder(other, scene.folder.File("other"), kSmallShard);
  const Status refused = ApplyTo(scene, scene.folder.File("other"), delta);
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(Has(refused, "other names, dtypes or shapes"));
}

TEST_CASE("checkpoints with different tensors are not packed and the message names them",
          "[checkpoint]") {
  Scene scene;
  TestModel other = scene.b;
  other["more.weight"] = RandomTensor(safetensors::FileDType::kBF16, {4, 4}, 9);
  other["scale"] = RandomTensor(safetensors::FileDType::kF32, {1}, 9);
  WriteFolder(other, scene.folder.File("other"), kSmallShard);
  const std::string out = scene.folder.File("d.dws");
  const auto refused = scene.PackTo(scene.A(), scene.folder.File("other"), out);
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(Has(refused.status(), "'more.weight', 'scale'"));
  CHECK_FALSE(std::filesystem::exists(out));
  CHECK(absl::IsInvalidArgument(
      scene.PackTo(scene.A(), scene.B(), out, {.base_version = 5, .version = 5}).status()));
}

TEST_CASE("a delta damaged anywhere changes nothing", "[checkpoint]") {
  Scene scene;
  const std::string delta = scene.Delta();
  const std::string sound = ReadText(delta);
  for (uint64_t offset = 0; offset < sound.size(); offset += sound.size() / 37) {
    CAPTURE(offset);
    Overwrite(delta, offset, static_cast<char>(sound[offset] ^ 0x20));
    CHECK_FALSE(ApplyTo(scene, scene.A(), delta).ok());
    Overwrite(delta, offset, sound[offset]);
  }
  CHECK(ReadModel(scene.A()) == scene.a);
  std::filesystem::resize_file(delta, sound.size() - 1);
  CHECK(absl::IsDataLoss(ApplyTo(scene, scene.A(), delta)));
}

TEST_CASE("apply does not write over an existing checkpoint", "[checkpoint]") {
  Scene scene;
  const std::vector<std::string> deltas = {scene.Delta()};
  const std::string out = scene.B();
  CHECK(absl::IsAlreadyExists(ApplyDeltas(scene.files,
                                          {.base = scene.A(), .deltas = deltas, .out = out},
                                          scene.pool, NoProgress)
                                  .status()));
  CHECK(ReadModel(out) == scene.b);
}

TEST_CASE("a new checkpoint has no files left by a killed process of the same pid",
          "[checkpoint]") {
  Scene scene;
  const std::vector<std::string> deltas = {scene.Delta()};
  const std::string out = scene.folder.File("out");
  const std::string left = fmt::format("{}.partial-{}", out, ::getpid());
  WriteFolder(scene.a, left, kSmallShard);
  WriteSingle(scene.a, left + "/model-00001-of-00099.safetensors");
  const auto made = ApplyDeltas(scene.files, {.base = scene.A(), .deltas = deltas, .out = out},
                                scene.pool, NoProgress);
  INFO(made.status().ToString());
  REQUIRE(made.ok());
  CHECK(ReadModel(out) == scene.b);
  CHECK_FALSE(std::filesystem::exists(out + "/model-00001-of-00099.safetensors"));
  CHECK_FALSE(std::filesystem::exists(left));
}

TEST_CASE("a new checkpoint has no files that killed commands left in the base", "[checkpoint]") {
  Scene scene;
  const std::vector<std::string> deltas = {scene.Delta()};
  for (const std::string left :
       {"config.json.tmp", "model-00001-of-00005.safetensors.tmp", "101.dws.frames.tmp"}) {
    std::ofstream(scene.A() + "/" + left) << "of no use";
  }
  std::ofstream(scene.A() + "/tmp") << "a file of the checkpoint";
  const std::string out = scene.folder.File("out");
  REQUIRE(ApplyDeltas(scene.files, {.base = scene.A(), .deltas = deltas, .out = out}, scene.pool,
                      NoProgress)
              .ok());
  for (const auto& entry : std::filesystem::directory_iterator(out)) {
    const std::string name = entry.path().filename();
    CAPTURE(name);
    CHECK((name == "tmp" || std::filesystem::exists(scene.B() + "/" + name)));
  }
  CHECK(std::filesystem::exists(out + "/tmp"));
  CHECK(ReadModel(out) == scene.b);
}

TEST_CASE("an apply cancelled at any progress report leaves no files", "[checkpoint]") {
  Scene scene;
  const std::vector<std::string> deltas = {scene.Delta()};
  const std::string out = scene.folder.File("out");
  bool done = false;
  for (int allowed = 0; !done; ++allowed) {
    CAPTURE(allowed);
    REQUIRE(allowed < 100);
    int left = allowed;
    const Progress progress = [&left](const ProgressStep&) {
      return left-- > 0 ? OkStatus() : CancelledError("enough");
    };
    const auto made = ApplyDeltas(scene.files, {.base = scene.A(), .deltas = deltas, .out = out},
                                  scene.pool, progress);
    done = made.ok();
    CHECK((done || absl::IsCancelled(made.status())));
    CHECK(std::filesystem::exists(out) == done);
    size_t entries = 0;
    for (const auto& entry : std::filesystem::directory_iterator(scene.folder.path())) {
      static_cast<void>(entry);
      ++entries;
    }
    CHECK(entries == (done ? 4U : 3U));  // A, B, the delta
  }
  CHECK(ReadModel(out) == scene.b);
}

}  // namespace dws::checkpoint
