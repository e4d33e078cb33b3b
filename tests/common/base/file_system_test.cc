#include "common/base/file_system.h"

#include <sys/stat.h>
#include <unistd.h>

#include <catch2/catch.hpp>
#include <fstream>
#include <string>
#include <thread>

#include "tests/fakes/fault_file_system.h"
#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

std::string Read(FileSystem& fs, const std::string& path) {
  const Result<std::vector<std::byte>> bytes = fs.ReadFile(path, 1 << 20);
  return bytes.ok() ? std::string(AsText(*bytes)) : ToString(bytes.status());
}

// The contract of the interface, on the real disk and on the fake.
void CheckContract(FileSystem& fs, const std::string& folder) {
  REQUIRE(fs.MakeFolders(folder).ok());
  REQUIRE(fs.MakeFolders(folder).ok());
  const std::string path = folder + "/file";
  CHECK(absl::IsNotFound(fs.ReadFile(path, 10).status()));
  CHECK(absl::IsNotFound(fs.Remove(path)));

  {
    Result<std::unique_ptr<AppendFile>> file = fs.OpenForAppend(path);
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(AsBytes("one ")).ok());
    REQUIRE((*file)->Append(AsBytes("two")).ok());
    REQUIRE((*file)->Sync().ok());
  }
  CHECK(Read(fs, path) == "one two");
  {
    Result<std::unique_ptr<AppendFile>> file = fs.OpenForAppend(path);
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(AsBytes("!")).ok());
  }
  CHECK(Read(fs, path) == "one two!");
  CHECK(fs.ReadFile(path, 8).ok());
  CHECK(absl::IsResourceExhausted(fs.ReadFile(path, 7).status()));

  REQUIRE(fs.ReplaceFile(path, AsBytes("new")).ok());
  CHECK(Read(fs, path) == "new");
  REQUIRE(fs.ReplaceFile(folder + "/a", {}).ok());
  const Result<std::vector<std::string>> names = fs.List(folder);
  REQUIRE(names.ok());
  CHECK(*names == std::vector<std::string>{"a", "file"});
  CHECK(fs.Remove(path).ok());
  CHECK(absl::IsNotFound(fs.ReadFile(path, 10).status()));

  for (const std::string text : {"longer than", "what comes"}) {
    Result<std::unique_ptr<AppendFile>> file = fs.Create(path + ".tmp");
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(AsBytes(text)).ok());
    REQUIRE((*file)->Sync().ok());
  }
  CHECK(fs.Rename(path + ".tmp", path).ok());
  CHECK(Read(fs, path) == "what comes");
  CHECK(absl::IsNotFound(fs.ReadFile(path + ".tmp", 10).status()));
  CHECK(absl::IsNotFound(fs.Rename(path + ".tmp", path)));
  CHECK(Read(fs, path) == "what comes");
  CHECK(fs.Remove(path).ok());

  {
    const Result<std::unique_ptr<FileLock>> lock = fs.Lock(folder + "/lock");
    REQUIRE(lock.ok());
    CHECK(absl::IsUnavailable(fs.Lock(folder + "/lock").status()));
  }
  CHECK(fs.Lock(folder + "/lock").ok());
}

TEST_CASE("the real file system keeps the interface's contract", "[file_system]") {
  TempFolder folder;
  PosixFileSystem fs;
  CheckContract(fs, folder.File("some/deep"));
}

TEST_CASE("the fault file system keeps the interface's contract", "[file_system]") {
  FaultFileSystem fs;
  CheckContract(fs, "/state/some/deep");
}

TEST_CASE("folders and files are not readable by others", "[file_system]") {
  TempFolder folder;
  PosixFileSystem fs;
  REQUIRE(fs.MakeFolders(folder.File("state")).ok());
  REQUIRE(fs.ReplaceFile(folder.File("state/file"), AsBytes("x")).ok());
  struct stat found = {};
  REQUIRE(::stat(folder.File("state").c_str(), &found) == 0);
  CHECK((found.st_mode & 0007) == 0);
  REQUIRE(::stat(folder.File("state/file").c_str(), &found) == 0);
  CHECK((found.st_mode & 0007) == 0);
}

TEST_CASE("a replace that fails leaves the old file and no temporary one", "[file_system]") {
  TempFolder folder;
  PosixFileSystem fs;
  REQUIRE(fs.MakeFolders(folder.File("target/inside")).ok());
  // A folder cannot be replaced by a file.
  const Status status = fs.ReplaceFile(folder.File("target"), AsBytes("x"));
  CHECK_FALSE(status.ok());
  CHECK(std::string(Message(status)).find(folder.File("target")) != std::string::npos);
  const Result<std::vector<std::string>> names = fs.List(folder.path());
  REQUIRE(names.ok());
  CHECK(*names == std::vector<std::string>{"target"});
}

TEST_CASE("making a folder where a file exists is FAILED_PRECONDITION", "[file_system]") {
  TempFolder folder;
  PosixFileSystem fs;
  REQUIRE(fs.ReplaceFile(folder.File("state"), AsBytes("x")).ok());
  CHECK(absl::IsFailedPrecondition(fs.MakeFolders(folder.File("state"))));
}

TEST_CASE("the fault file system loses what was not synced", "[file_system]") {
  FaultFileSystem fs;
  {
    Result<std::unique_ptr<AppendFile>> file = fs.OpenForAppend("/f");
    REQUIRE(file.ok());
    REQUIRE((*file)->Append(AsBytes("kept")).ok());
    REQUIRE((*file)->Sync().ok());
    REQUIRE((*file)->Append(AsBytes("lost")).ok());
  }
  fs.LosePower(1);
  CHECK(Read(fs, "/f") == "keptl");
}

TEST_CASE("a pipe is read to its end and a pipe without a writer is UNAVAILABLE", "[file_system]") {
  const TempFolder folder;
  const std::string path = folder.File("pipe");
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  PosixFileSystem fs;
  CHECK(absl::IsUnavailable(fs.ReadFile(path, 10).status()));
  std::thread writer([&path] { std::ofstream(path) << "one " << std::flush << "two"; });
  CHECK(Read(fs, path) == "one two");
  writer.join();
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  REQUIRE(::close(ends[1]) == 0);
  const std::string read_before = fmt::format("/dev/fd/{}", ends[0]);
  CHECK(absl::IsUnavailable(fs.ReadFile(read_before, 10).status()));
  REQUIRE(::close(ends[0]) == 0);
}

}  // namespace
}  // namespace dws
