// Files whose bytes go away while they are mapped.
#include "common/formats/mapping_guard.h"

#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <fstream>
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

}  // namespace dws
