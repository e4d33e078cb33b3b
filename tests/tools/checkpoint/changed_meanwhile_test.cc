// Checkpoints that are changed while a command reads them: the command fails, whether the change
// has ended or not, and however it is made.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "common/formats/checkpoint/settled.h"
#include "common/formats/safetensors/checkpoint_index.h"
#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/apply.h"
#include "tools/checkpoint/estimate.h"

namespace dws::checkpoint {
namespace {

// One file each, so that a change affects bytes that are still to be read.
struct Meanwhile {
  Meanwhile() {
    WriteSingle(scene.a, a);
    WriteSingle(scene.b, b);
    REQUIRE(scene.PackTo(a, b, delta).ok());
  }

  // Changes `a` in place, as a receiver does.
  void PatchInPlace() {
    const auto patched = Checkpoint::Open(a, FileAccess::kWritable);
    REQUIRE(patched.ok());
    patched->Writable(*patched->Find("head.weight"))[3] ^= std::byte{1};
    REQUIRE(patched->Sync().ok());
  }

  // What a receiver leaves beside `a` until its change has ended.
  void MarkHalfChanged() {
    const std::string record = RedoFolder(scene.folder.path()) + "/weight_v000002";
    std::filesystem::create_directories(record);
    std::ofstream(record + "/" + safetensors::kIndexFile) << "{}";
  }

  // Runs `change` at the first progress report.
  Progress Once(std::function<void()> change) {
    return [this, change = std::move(change)](const ProgressStep&) {
      if (!std::exchange(changed, true)) change();
      return OkStatus();
    };
  }

  Scene scene;
  const std::string a = scene.folder.File("a.safetensors");
  const std::string b = scene.folder.File("b.safetensors");
  const std::string delta = scene.folder.File("delta.dws");
  const std::string out = scene.folder.File("out.dws");
  bool changed = false;
};

bool Says(const Status& status, const std::string& text) {
  UNSCOPED_INFO(status.ToString());
  return status.ToString().find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("pack fails if a checkpoint is changed in place while it reads", "[checkpoint]") {
  Meanwhile at;
  const auto a = Checkpoint::Open(at.a);
  const auto b = Checkpoint::Open(at.b);
  const Progress progress = at.Once([&] { at.PatchInPlace(); });
  const Status packed = Pack(at.scene.files, *a, *b, {}, at.out, at.scene.pool, progress).status();
  REQUIRE(at.changed);
  CHECK(absl::IsAborted(packed));
  CHECK(Says(packed, "a.safetensors was changed while it was read: do it again"));
  CHECK_FALSE(std::filesystem::exists(at.out));
  // It also fails if the other checkpoint is changed.
  at.changed = false;
  const auto again = Checkpoint::Open(at.a);
  const Progress touched = at.Once([&] { WriteSingle(at.scene.b, at.b); });
  CHECK(Says(Pack(at.scene.files, *again, *b, {}, at.out, at.scene.pool, touched).status(),
             "b.safetensors was changed while it was read"));
}

TEST_CASE("pack fails if the change of a receiver has not ended when it has read", "[checkpoint]") {
  Meanwhile at;
  const auto a = Checkpoint::Open(at.a);
  const auto b = Checkpoint::Open(at.b);
  REQUIRE(CheckSettled(at.a).ok());
  const Progress progress = at.Once([&] { at.MarkHalfChanged(); });
  const Status packed = Pack(at.scene.files, *a, *b, {}, at.out, at.scene.pool, progress).status();
  CHECK(absl::IsFailedPrecondition(packed));
  CHECK(Says(packed, "a receiver is changing this checkpoint"));
  CHECK_FALSE(std::filesystem::exists(at.out));
}

TEST_CASE("a checkpoint that a receiver has half changed is detected by every path to it",
          "[checkpoint]") {
  Meanwhile at;
  const std::string link = at.scene.A() + "/link.safetensors";
  std::filesystem::create_symlink(at.a, link);
  const std::vector<std::string> paths = {at.scene.folder.path(), at.scene.folder.path() + "/",
                                          at.a, link};
  // Without the index there is nothing to complete.
  std::filesystem::create_directories(RedoFolder(at.scene.folder.path()) + "/weight_v000001");
  for (const std::string& path : paths) CHECK(CheckSettled(path).ok());
  at.MarkHalfChanged();
  for (const std::string& path : paths) {
    CAPTURE(path);
    CHECK(absl::IsFailedPrecondition(CheckSettled(path)));
  }
  const std::vector<std::string> deltas = {at.delta};
  CHECK(absl::IsFailedPrecondition(ApplyDeltas(at.scene.files,
                                               {.base = at.a, .deltas = deltas, .out = at.out},
                                               at.scene.pool, NoProgress)
                                       .status()));
  CHECK_FALSE(std::filesystem::exists(at.out));
}

TEST_CASE("an estimate fails if a checkpoint is changed in any way while it reads",
          "[checkpoint]") {
  Meanwhile at;
  const auto a = Checkpoint::Open(at.a);
  const auto b = Checkpoint::Open(at.b);
  std::function<void()> change;
  SECTION("in place") {
    change = [&] { at.PatchInPlace(); };
  }
  SECTION("by replacing a file") {
    change = [&] { WriteSingle(at.scene.b, at.a); };
  }
  SECTION("by a write") {
    change = [&] {
      std::fstream stream(at.a, std::ios::binary | std::ios::in | std::ios::out);
      stream.seekp(-1, std::ios::end);
      stream.put('x');
    };
  }
  SECTION("by removing a file") {
    change = [&] { std::filesystem::remove(at.a); };
  }
  const auto estimated = EstimateSync(*a, *b, {}, at.scene.pool, at.Once(change));
  CHECK(absl::IsAborted(estimated.status()));
  CHECK(Says(estimated.status(), "a.safetensors was changed while it was read"));
}

TEST_CASE("squash and apply fail if the base is changed while they run", "[checkpoint]") {
  Meanwhile at;
  const std::vector<std::string> deltas = {at.delta};
  // The change comes after the base was proved: the second step starts then.
  int steps = 0;
  const Progress progress = [&](const ProgressStep& step) {
    if (step.done_bytes == 0 && ++steps == 2) WriteSingle(at.scene.a, at.a);  // the same bytes
    return OkStatus();
  };
  SECTION("squash") {
    const auto base = Checkpoint::Open(at.a);
    const Status squashed = SquashOver(at.scene.files, *base, deltas, DeltaProfile::kFast, at.out,
                                       at.scene.pool, progress)
                                .status();
    CHECK(absl::IsAborted(squashed));
  }
  SECTION("apply") {
    const Status made = ApplyDeltas(at.scene.files, {.base = at.a, .deltas = deltas, .out = at.out},
                                    at.scene.pool, progress)
                            .status();
    CHECK(absl::IsAborted(made));
  }
  CHECK(steps == 2);
  CHECK_FALSE(std::filesystem::exists(at.out));
}

TEST_CASE("squash over a base that is changed without a new time fails by its digests",
          "[checkpoint]") {
  Meanwhile at;
  const std::vector<std::string> deltas = {at.delta};
  const auto base = Checkpoint::Open(at.a, FileAccess::kWritable);
  int steps = 0;
  const Progress progress = [&](const ProgressStep& step) {
    if (step.done_bytes == 0 && ++steps == 2) {
      // Through a mapping and not synced, so no file time shows it reliably.
      const CheckpointTensor* const frozen = base->Find("frozen.weight");
      base->Writable(*frozen)[3] ^= std::byte{1};
    }
    return OkStatus();
  };
  const Status squashed = SquashOver(at.scene.files, *base, deltas, DeltaProfile::kFast, at.out,
                                     at.scene.pool, progress)
                              .status();
  CHECK(absl::IsAborted(squashed));
  CHECK(steps == 2);
  CHECK_FALSE(std::filesystem::exists(at.out));
}

TEST_CASE("deltas that begin with an empty one are not squashed over their own result",
          "[checkpoint]") {
  Meanwhile at;
  const std::string nothing = at.scene.folder.File("nothing.dws");
  REQUIRE(at.scene.PackTo(at.a, at.a, nothing).ok());
  REQUIRE(at.scene.PackTo(at.a, at.b, at.delta, {.base_version = 2, .version = 3}).ok());
  const std::vector<std::string> deltas = {nothing, at.delta};
  const auto result = Checkpoint::Open(at.b);
  CHECK(absl::IsFailedPrecondition(SquashOver(at.scene.files, *result, deltas, DeltaProfile::kFast,
                                              at.out, at.scene.pool, NoProgress)
                                       .status()));
  CHECK_FALSE(std::filesystem::exists(at.out));
}

}  // namespace dws::checkpoint
