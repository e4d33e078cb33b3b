// Checkpoints that somebody changes while they are read: what was read is not taken for a version,
// whether the change is still going on at the end or has ended, and however it was made.
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
#include <functional>
#include <vector>

#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/estimate.h"
#include "tools/checkpoint/in_place.h"
#include "tools/checkpoint/materialize.h"
#include "tools/checkpoint/settled.h"

namespace dws::checkpoint {
namespace {

// One file each, so that a change reaches bytes that are still to be read.
struct Meanwhile {
  Meanwhile() {
    WriteSingle(scene.a, a);
    WriteSingle(scene.b, b);
    REQUIRE(scene.PackTo(a, b, delta).ok());
  }

  // Brings `a` to version 2 where it lies; ends at the n-th sign of progress.
  Status ApplyInPlaceUpTo(int n) {
    ThreadPool other(0);
    const Progress progress = [&n](const ProgressStep&) {
      return n-- > 0 ? OkStatus() : CancelledError("enough");
    };
    return ApplyInPlace(scene.files, {.checkpoint = a, .deltas = std::span(&delta, 1)}, other,
                        progress)
        .status();
  }

  // Works on what is there until its first sign of progress, and then goes on.
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

TEST_CASE("an apply in place that ends while a checkpoint is packed is noticed", "[checkpoint]") {
  Meanwhile at;
  const auto a = Checkpoint::Open(at.a);
  const auto b = Checkpoint::Open(at.b);
  const Progress progress = at.Once([&] { REQUIRE(at.ApplyInPlaceUpTo(1000).ok()); });
  const Status packed = Pack(at.scene.files, *a, *b, {}, at.out, at.scene.pool, progress).status();
  REQUIRE(at.changed);
  CHECK(absl::IsAborted(packed));
  CHECK(Says(packed, "a.safetensors was changed while it was read: do it again"));
  CHECK_FALSE(std::filesystem::exists(at.out));
  // The other way round it is the same.
  at.changed = false;
  const auto again = Checkpoint::Open(at.a);
  const Progress touched = at.Once([&] { WriteSingle(at.scene.b, at.b); });
  CHECK(Says(Pack(at.scene.files, *again, *b, {}, at.out, at.scene.pool, touched).status(),
             "b.safetensors was changed while it was read"));
}

TEST_CASE("an apply in place that is still going on when a checkpoint has been read is noticed",
          "[checkpoint]") {
  Meanwhile at;
  const auto a = Checkpoint::Open(at.a);
  const auto b = Checkpoint::Open(at.b);
  const Progress progress = at.Once([&] {
    for (int n = 0; CheckSettled(at.a).ok(); ++n) REQUIRE_FALSE(at.ApplyInPlaceUpTo(n).ok());
  });
  const Status packed = Pack(at.scene.files, *a, *b, {}, at.out, at.scene.pool, progress).status();
  CHECK(absl::IsFailedPrecondition(packed));
  CHECK(Says(packed, "has not ended"));
  CHECK_FALSE(std::filesystem::exists(at.out));
}

TEST_CASE("a change while checkpoints are compared is noticed, however it is made",
          "[checkpoint]") {
  Meanwhile at;
  const auto a = Checkpoint::Open(at.a);
  const auto b = Checkpoint::Open(at.b);
  std::function<void()> change;
  SECTION("in place") {
    change = [&] { REQUIRE(at.ApplyInPlaceUpTo(1000).ok()); };
  }
  SECTION("by another file in its place") {
    change = [&] { WriteSingle(at.scene.b, at.a); };
  }
  SECTION("by a write") {
    change = [&] {
      std::fstream stream(at.a, std::ios::binary | std::ios::in | std::ios::out);
      stream.seekp(-1, std::ios::end);
      stream.put('x');
    };
  }
  SECTION("by taking it away") {
    change = [&] { std::filesystem::remove(at.a); };
  }
  const auto estimated = EstimateSync(*a, *b, {}, at.scene.pool, at.Once(change));
  CHECK(absl::IsAborted(estimated.status()));
  CHECK(Says(estimated.status(), "a.safetensors was changed while it was read"));
}

TEST_CASE("a base that changes while deltas are squashed or applied gives no result",
          "[checkpoint]") {
  Meanwhile at;
  const std::vector<std::string> deltas = {at.delta};
  // After the proof, whose signs of progress are the first and the last of its step.
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
  SECTION("materialize") {
    const Status made = Materialize(at.scene.files, {.base = at.a, .deltas = deltas, .out = at.out},
                                    at.scene.pool, progress)
                            .status();
    CHECK(absl::IsAborted(made));
  }
  CHECK(steps == 2);
  CHECK_FALSE(std::filesystem::exists(at.out));
}

TEST_CASE("what is squashed over a base that is torn in the middle is refused by its digests",
          "[checkpoint]") {
  Meanwhile at;
  const std::vector<std::string> deltas = {at.delta};
  const auto base = Checkpoint::Open(at.a, FileAccess::kWritable);
  int steps = 0;
  const Progress progress = [&](const ProgressStep& step) {
    if (step.done_bytes == 0 && ++steps == 2) {
      // Through a mapping, and not synced: no time of a file tells it for certain.
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

TEST_CASE("deltas of which the first changes nothing are not squashed over their own result",
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
