// Applying in place: a process killed at any progress report leaves the checkpoint unchanged, or in
// a state that the same call completes.
#include <sys/wait.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <cerrno>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <vector>

#include "common/formats/checkpoint/settled.h"
#include "tests/tools/checkpoint/forgetful_files.h"
#include "tests/tools/checkpoint/scene.h"
#include "tools/checkpoint/in_place.h"

namespace dws::checkpoint {
namespace {

// Applies in a child process that is killed at its n-th progress report. True if it finished.
bool ApplyAndDieAt(int n, const std::string& checkpoint, const std::string& delta) {
  const pid_t child = fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    PosixFileSystem files;
    ThreadPool pool(1);
    int left = n;
    const Progress progress = [&left](const ProgressStep&) {
      if (left-- == 0) ::raise(SIGKILL);
      return OkStatus();
    };
    const auto applied = ApplyInPlace(
        files, {.checkpoint = checkpoint, .deltas = std::span(&delta, 1)}, pool, progress);
    ::_exit(applied.ok() ? 0 : 1);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  const bool killed = WIFSIGNALED(status) && WTERMSIG(status) == SIGKILL;
  CHECK((killed || (WIFEXITED(status) && WEXITSTATUS(status) == 0)));
  return !killed;
}

// Leaves a redo in `checkpoint`.
void Interrupt(const std::string& checkpoint, const std::string& delta) {
  int n = 0;
  while (CheckSettled(checkpoint).ok()) REQUIRE_FALSE(ApplyAndDieAt(n++, checkpoint, delta));
}

Result<InPlaceOutcome> Apply(Scene& scene, const std::string& checkpoint,
                             const std::string& delta) {
  return ApplyInPlace(scene.files, {.checkpoint = checkpoint, .deltas = std::span(&delta, 1)},
                      scene.pool, NoProgress);
}

// Replaces the files of A by those of `model`; other files of A stay.
void PutFiles(Scene& scene, const TestModel& model) {
  const std::string from = scene.folder.File("from");
  WriteFolder(model, from, kSmallShard);
  using std::filesystem::copy_options;  // without recursive, copy does nothing
  std::filesystem::copy(from, scene.A(),
                        copy_options::recursive | copy_options::overwrite_existing);
}

std::vector<std::string> Names(const std::string& folder) {
  std::vector<std::string> names;
  for (const auto& entry : std::filesystem::directory_iterator(folder)) {
    names.push_back(entry.path().filename());
  }
  std::sort(names.begin(), names.end());
  return names;
}

}  // namespace

TEST_CASE("a checkpoint is brought to the next version in place", "[checkpoint]") {
  const auto profile = GENERATE(DeltaProfile::kFast, DeltaProfile::kWan, DeltaProfile::kDirect);
  Scene scene;
  const std::string delta = scene.Delta(profile);
  const std::vector<std::string> before = Names(scene.A());
  const auto applied = Apply(scene, scene.A(), delta);
  INFO(applied.status().ToString());
  REQUIRE(applied.ok());
  CHECK(applied->version == 2);
  CHECK(applied->redo_bytes > 0);
  CHECK_FALSE(applied->already_applied);
  CHECK(Names(scene.A()) == before);
  for (const std::string& name : before) {
    CHECK(ReadText(scene.A() + "/" + name) == ReadText(scene.B() + "/" + name));
  }
  const auto again = Apply(scene, scene.A(), delta);
  REQUIRE(again.ok());
  CHECK(again->already_applied);
  CHECK(ReadModel(scene.A()) == scene.b);
}

TEST_CASE("after a kill anywhere in an apply in place the same call completes it", "[checkpoint]") {
  Scene scene(2, 4);
  const std::string delta = scene.Delta();
  const std::string target = scene.folder.File("target");
  int completed = 0;
  int untouched = 0;
  bool ended = false;
  for (int n = 0; !ended; ++n) {
    CAPTURE(n);
    REQUIRE(n < 200);
    std::filesystem::remove_all(target);
    WriteFolder(scene.a, target, kSmallShard);
    ended = ApplyAndDieAt(n, target, delta);
    const bool interrupted = !CheckSettled(target).ok();
    if (!ended && !interrupted) CHECK(ReadModel(target) == scene.a);
    const auto applied = Apply(scene, target, delta);
    INFO(applied.status().ToString());
    REQUIRE(applied.ok());
    CHECK(applied->finished_earlier == interrupted);
    CHECK(ReadModel(target) == scene.b);
    CHECK(Names(target) == Names(scene.B()));
    CHECK(CheckSettled(target).ok());
    completed += interrupted ? 1 : 0;
    untouched += !ended && !interrupted ? 1 : 0;
  }
  CHECK(completed >= 3);
  CHECK(untouched >= 3);
}

TEST_CASE("after a kill during the completion the same call completes it too", "[checkpoint]") {
  Scene scene(3, 4);
  const std::string delta = scene.Delta();
  Interrupt(scene.A(), delta);
  for (int at = 0; at < 6; ++at) {  // two each in checking, writing and proving
    ApplyAndDieAt(at, scene.A(), delta);
    CHECK_FALSE(CheckSettled(scene.A()).ok());
  }
  REQUIRE(Apply(scene, scene.A(), delta).ok());
  CHECK(ReadModel(scene.A()) == scene.b);
}

TEST_CASE("files torn at any place are completed from the redo", "[checkpoint]") {
  Scene scene(4, 4);
  const std::string delta = scene.Delta();
  Interrupt(scene.A(), delta);
  // A power cut can leave this: some pages of the new version are on the disk.
  const std::vector<std::string> names = Names(scene.A());
  for (const std::string& name : names) {
    if (name.find(".safetensors") == std::string::npos || name.find("json") != std::string::npos) {
      continue;
    }
    const std::string after = ReadText(scene.B() + "/" + name);
    std::fstream stream(scene.A() + "/" + name, std::ios::binary | std::ios::in | std::ios::out);
    for (size_t page = 0; page + 4096 <= after.size(); page += 3 * 4096) {
      stream.seekp(static_cast<std::streamoff>(page));
      stream.write(after.data() + page, 4096);
    }
  }
  const auto applied = Apply(scene, scene.A(), delta);
  REQUIRE(applied.ok());
  CHECK(applied->finished_earlier);
  CHECK(applied->already_applied);
  CHECK(ReadModel(scene.A()) == scene.b);
}

TEST_CASE("a redo that is older than the files is refused and the files stay", "[checkpoint]") {
  Scene scene(5);
  const std::string delta = scene.Delta();
  Interrupt(scene.A(), delta);
  TestModel other = scene.a;
  SECTION("of a version in between") { Train(other, 4, 77); }
  SECTION("that differ only where the redo writes nothing") {
    other["frozen.weight"].bytes[9] ^= std::byte{1};
  }
  PutFiles(scene, other);
  const auto refused = Apply(scene, scene.A(), delta);
  INFO(refused.status().ToString());
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(refused.status().ToString().find("/A/.dws-apply.redo was recorded") != std::string::npos);
  CHECK(refused.status().ToString().find("remove this record") != std::string::npos);
  CHECK(ReadModel(scene.A()) == other);
  CHECK_FALSE(CheckSettled(scene.A()).ok());
}

TEST_CASE("a base restored over torn files is brought to the version too", "[checkpoint]") {
  Scene scene(6, 4);
  const std::string delta = scene.Delta();
  Interrupt(scene.A(), delta);
  PutFiles(scene, scene.a);
  REQUIRE(Apply(scene, scene.A(), delta).ok());
  CHECK(ReadModel(scene.A()) == scene.b);
}

TEST_CASE("a half-changed checkpoint is detected by every path to it", "[checkpoint]") {
  Scene scene(8, 4);
  const std::string folder = scene.folder.File("one");
  std::filesystem::create_directory(folder);
  const std::string file = folder + "/model.safetensors";
  WriteSingle(scene.a, file);
  const std::string delta = scene.Delta();
  const std::string link = scene.folder.File("link.safetensors");
  std::filesystem::create_symlink(file, link);
  const bool whole = GENERATE(true, false);
  const std::string done = whole ? folder : file;
  const std::string other = whole ? file : folder;
  Interrupt(done, delta);
  for (const std::string& path : {folder, folder + "/", file, link}) {
    CAPTURE(path);
    CHECK(absl::IsFailedPrecondition(CheckSettled(path)));
  }
  CHECK(absl::IsFailedPrecondition(Apply(scene, other, delta).status()));
  REQUIRE(Apply(scene, done, delta).ok());
  for (const std::string& path : {folder, file, link}) CHECK(CheckSettled(path).ok());
  CHECK(ReadModel(folder) == scene.b);
}

TEST_CASE("a checkpoint that a receiver keeps is not changed in place", "[checkpoint]") {
  Scene scene(9, 4);
  const std::string delta = scene.Delta();
  const std::string redo = scene.A() + "/.weight_sync/redo/weight_v000002";
  std::filesystem::create_directories(redo);
  const Status refused = Apply(scene, scene.A(), delta).status();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(refused.ToString().find("a receiver keeps this checkpoint") != std::string::npos);
  CHECK(ReadModel(scene.A()) == scene.a);
  // Without the marker the checkpoint is not half-changed.
  CHECK(CheckSettled(scene.A()).ok());
  std::ofstream(redo + "/model.safetensors.index.json") << "{}";
  CHECK(absl::IsFailedPrecondition(CheckSettled(scene.A())));
  CHECK(absl::IsFailedPrecondition(CheckSettled(scene.A() + "/model-00001-of-00005.safetensors")));
}

TEST_CASE("a half-changed checkpoint is completed only while its receiver is stopped",
          "[checkpoint]") {
  Scene scene(13, 4);
  const std::string delta = scene.Delta();
  Interrupt(scene.A(), delta);
  std::filesystem::create_directory(scene.A() + "/.weight_sync");
  {
    const auto receiver = scene.files.Lock(scene.A() + "/.weight_sync/lock");
    REQUIRE(receiver.ok());
    const Status refused = Apply(scene, scene.A(), delta).status();
    INFO(refused.ToString());
    CHECK(absl::IsUnavailable(refused));
    CHECK(refused.ToString().find("stop it first") != std::string::npos);
    CHECK(refused.ToString().find("run it again to complete it") != std::string::npos);
    CHECK_FALSE(CheckSettled(scene.A()).ok());
  }
  SECTION("by the same delta") {
    const auto applied = Apply(scene, scene.A(), delta);
    INFO(applied.status().ToString());
    REQUIRE(applied.ok());
    CHECK(applied->finished_earlier);
    CHECK(applied->already_applied);
  }
  SECTION("by the next delta which is then refused") {
    TestModel third = scene.b;
    Train(third, 30, 99);
    WriteFolder(third, scene.folder.File("C"), kSmallShard);
    const std::string next = scene.folder.File("next.dws");
    REQUIRE(scene.PackTo(scene.B(), scene.folder.File("C"), next, {.base_version = 2, .version = 3})
                .ok());
    const Status refused = Apply(scene, scene.A(), next).status();
    INFO(refused.ToString());
    CHECK(absl::IsFailedPrecondition(refused));
    CHECK(refused.ToString().find("has been completed") != std::string::npos);
    CHECK(refused.ToString().find("a receiver keeps this checkpoint") != std::string::npos);
  }
  CHECK(CheckSettled(scene.A()).ok());
  CHECK(ReadModel(scene.A()) == scene.b);
}

TEST_CASE("files shared with other checkpoints by links are not written", "[checkpoint]") {
  Scene scene(10, 4);
  const std::string delta = scene.Delta();
  const std::string other = scene.folder.File("other");
  std::filesystem::create_directory(other);
  const bool symbolic = GENERATE(true, false);
  for (const std::string& name : Names(scene.A())) {
    const std::filesystem::path to = other + "/" + name;
    symbolic ? std::filesystem::create_symlink(scene.A() + "/" + name, to)
             : std::filesystem::create_hard_link(scene.A() + "/" + name, to);
  }
  const Status refused = Apply(scene, other, delta).status();
  CHECK(absl::IsFailedPrecondition(refused));
  CHECK(refused.ToString().find("shared with another checkpoint") != std::string::npos);
  CHECK(ReadModel(scene.A()) == scene.a);
  CHECK(CheckSettled(other).ok());
  // A link to the folder is the same folder.
  std::filesystem::remove_all(other);
  std::filesystem::create_directory_symlink(scene.A(), other);
  CHECK(Apply(scene, other, delta).ok());
  CHECK(ReadModel(scene.A()) == scene.b);
}

TEST_CASE("a cancelled apply in place reports when the files are half-changed", "[checkpoint]") {
  Scene scene(11, 4);
  const std::string delta = scene.Delta();
  int told = 0;
  bool ended = false;
  for (int allowed = 0; !ended; ++allowed) {
    CAPTURE(allowed);
    REQUIRE(allowed < 200);
    std::filesystem::remove_all(scene.A());
    WriteFolder(scene.a, scene.A(), kSmallShard);
    int left = allowed;
    const Progress progress = [&left](const ProgressStep&) {
      return left-- > 0 ? OkStatus() : CancelledError("enough");
    };
    const Status status =
        ApplyInPlace(scene.files, {.checkpoint = scene.A(), .deltas = std::span(&delta, 1)},
                     scene.pool, progress)
            .status();
    ended = status.ok();
    CHECK((ended || absl::IsCancelled(status)));
    const bool says = status.ToString().find("run it again to complete it") != std::string::npos;
    CHECK(says == !CheckSettled(scene.A()).ok());
    told += says ? 1 : 0;
  }
  CHECK(told >= 3);
}

TEST_CASE("a disk error in an apply in place reports that the files are half-changed",
          "[checkpoint]") {
  Scene scene(12, 4);
  const std::string delta = scene.Delta();
  ForgetfulFiles files;
  // Rename 1 publishes the redo. Rename 2 removes it after the files were written.
  files.FailRename(2, ErrnoError(EIO, "cannot rename"));
  const Status failed =
      ApplyInPlace(files, {.checkpoint = scene.A(), .deltas = std::span(&delta, 1)}, scene.pool,
                   NoProgress)
          .status();
  INFO(failed.ToString());
  CHECK(absl::IsDataLoss(failed));
  CHECK(failed.ToString().find("run it again to complete it") != std::string::npos);
  REQUIRE(Apply(scene, scene.A(), delta).ok());
  CHECK(ReadModel(scene.A()) == scene.b);
}

TEST_CASE("a power cut after an apply in place does not restore the redo", "[checkpoint]") {
  Scene scene(7, 4);
  const std::string delta = scene.Delta();
  ForgetfulFiles files;
  REQUIRE(ApplyInPlace(files, {.checkpoint = scene.A(), .deltas = std::span(&delta, 1)}, scene.pool,
                       NoProgress)
              .ok());
  files.LosePower();
  CHECK(CheckSettled(scene.A()).ok());
  CHECK(ReadModel(scene.A()) == scene.b);
}

TEST_CASE("a delta over another base changes nothing in place", "[checkpoint]") {
  Scene scene;
  const std::string delta = scene.Delta();
  TestModel other = scene.a;
  other["head.weight"].bytes[5] ^= std::byte{4};
  const std::string target = scene.folder.File("target");
  WriteFolder(other, target, kSmallShard);
  const std::vector<std::string> before = Names(target);
  const auto refused = Apply(scene, target, delta);
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(refused.status().ToString().find("'head.weight'") != std::string::npos);
  CHECK(ReadModel(target) == other);
  CHECK(Names(target) == before);
}

TEST_CASE("a locked checkpoint is not changed in place", "[checkpoint]") {
  Scene scene;
  const std::string delta = scene.Delta();
  const auto checkpoint = Checkpoint::Open(scene.A());
  const auto lock = scene.files.Lock(checkpoint->files()[0].mapping.path());
  REQUIRE(lock.ok());
  CHECK(absl::IsUnavailable(Apply(scene, scene.A(), delta).status()));
  CHECK(ReadModel(scene.A()) == scene.a);
}

}  // namespace dws::checkpoint
