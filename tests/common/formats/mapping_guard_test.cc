// Files whose bytes go away while they are mapped.
#include "common/formats/mapping_guard.h"

#include <sched.h>
#include <sys/mount.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <functional>
#include <string>

#include "common/formats/mapped_file.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

constexpr size_t kBytes = 64 << 10;

std::string MakeFile(const TempFolder& folder) {
  const std::string path = folder.File("file");
  std::ofstream(path, std::ios::binary) << std::string(kBytes, 'x');
  return path;
}

// More pages, one between each two, than a process may have mappings (vm.max_map_count: 65530).
constexpr size_t kPageBytes = 4096;
constexpr size_t kScattered = 40'000;
constexpr size_t kScatteredBytes = 2 * kScattered * kPageBytes;

// What waitpid says of a process that runs `body` and exits with what it returns.
int Child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) ::_exit(body());
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  return status;
}

// Returns whether a small tmpfs is mounted at `folder`, for this process alone.
bool MountSmall(const std::string& folder) {
  if (::unshare(CLONE_NEWNS) != 0 && ::unshare(CLONE_NEWUSER | CLONE_NEWNS) != 0) return false;
  return ::mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) == 0 &&
         ::mount("tmpfs", folder.c_str(), "tmpfs", 0, "size=1m") == 0;
}

}  // namespace

TEST_CASE("bytes that are missing are zeros and an error by name", "[guard]") {
  const TempFolder folder;
  const std::string path = MakeFile(folder);
  auto file = MappedFile::Open(path, FileAccess::kWritable);
  REQUIRE(file.ok());
  CHECK(file->CheckIntact().ok());
  std::filesystem::resize_file(path, 4096);
  CHECK(file->bytes()[0] == std::byte{'x'});
  CHECK(file->CheckIntact().ok());
  CHECK(file->bytes()[kBytes - 1] == std::byte{0});
  const MappedFile moved = *std::move(file);
  const Status lost = moved.CheckIntact();
  CHECK(absl::IsDataLoss(lost));
  CHECK_THAT(std::string(Message(lost)), Catch::Contains(path + ": bytes are missing"));
  CHECK(absl::IsDataLoss(moved.Sync()));
}

TEST_CASE("a write to bytes that are missing is an error when it is synced", "[guard]") {
  const TempFolder folder;
  const std::string path = MakeFile(folder);
  const auto file = MappedFile::Open(path, FileAccess::kWritable);
  REQUIRE(file.ok());
  std::filesystem::resize_file(path, 4096);
  file->writable()[8192] = std::byte{'y'};
  CHECK(absl::IsDataLoss(file->Sync()));
}

TEST_CASE("a process that reads missing bytes of another mapping ends and names the file",
          "[guard]") {
  const TempFolder folder;
  const std::string path = MakeFile(folder);
  const auto file = MappedFile::Open(path, FileAccess::kReadOnly);
  REQUIRE(file.ok());
  std::filesystem::resize_file(path, 4096);
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    static_cast<void>(::dup2(ends[1], STDERR_FILENO));
    ::_exit(static_cast<int>(file->bytes()[kBytes - 1]));
  }
  ::close(ends[1]);
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  std::string said(4096, '\0');
  said.resize(static_cast<size_t>(std::max<ssize_t>(::read(ends[0], said.data(), said.size()), 0)));
  ::close(ends[0]);
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
  CHECK_THAT(said, Catch::Contains(path) && Catch::Contains("truncated"));
}

TEST_CASE("many scattered pages of a file that was cut cost one mapping", "[guard]") {
  const TempFolder folder;
  const std::string path = MakeFile(folder);
  std::filesystem::resize_file(path, kScatteredBytes);
  const auto file = MappedFile::Open(path, FileAccess::kWritable);
  REQUIRE(file.ok());
  std::filesystem::resize_file(path, kPageBytes);
  size_t zeros = 0;
  for (size_t i = 0; i < kScattered; ++i) {
    zeros += file->bytes()[(2 * i + 1) * kPageBytes] == std::byte{0} ? 1 : 0;
  }
  CHECK(zeros == kScattered);
  CHECK(file->bytes()[0] == std::byte{'x'});
  CHECK(absl::IsDataLoss(file->Sync()));
}

TEST_CASE("many scattered writes to a full disk are one error", "[guard]") {
  const TempFolder folder;
  constexpr int kSkipped = 77;
  const int status = Child([&folder] {
    if (!MountSmall(folder.path())) return kSkipped;
    const std::string path = MakeFile(folder);
    std::filesystem::resize_file(path, kScatteredBytes);
    const auto file = MappedFile::Open(path, FileAccess::kWritable);
    if (!file.ok()) return 1;
    for (size_t i = 0; i < kScattered; ++i) {
      file->writable()[(2 * i + 1) * kPageBytes] = std::byte{'y'};
    }
    return absl::IsDataLoss(file->Sync()) ? 0 : 2;
  });
  REQUIRE(WIFEXITED(status));
  if (WEXITSTATUS(status) == kSkipped) {
    WARN("skipped: no tmpfs can be mounted here");
    return;
  }
  CHECK(WEXITSTATUS(status) == 0);
}

TEST_CASE("a bus error that another process sends ends this one", "[guard]") {
  const TempFolder folder;
  const auto file = MappedFile::Open(MakeFile(folder), FileAccess::kWritable);
  REQUIRE(file.ok());
  const int status = Child([] {
    ::kill(::getpid(), SIGBUS);
    return 0;
  });
  CHECK_FALSE((WIFEXITED(status) && WEXITSTATUS(status) == 0));
}

}  // namespace dws
