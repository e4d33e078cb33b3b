// Ranges of a file that is far away, read ahead of who reads them.
#include "common/transport/shared_fs/remote_file.h"

#include <algorithm>
#include <catch2/catch.hpp>
#include <string>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/transport/shared_fs/file_writer.h"
#include "common/transport/shared_fs/verified_file.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/fault_file_system.h"

namespace dws::shared {
namespace {

constexpr size_t kSize = 1000;

std::string Content() {
  std::string bytes(kSize, '\0');
  for (size_t i = 0; i < kSize; ++i) bytes[i] = static_cast<char>(i * 7);
  return bytes;
}

// Answers requests for ranges once they may go, and counts those that are under way.
class Far {
 public:
  Result<std::string> Fetch(FileRange range) {
    MutexLock lock(mutex_);
    asked_.push_back(range);
    most_ = std::max(most_, ++running_);
    while (!open_) opened_.Wait(mutex_);
    --running_;
    if (range.offset == fails_at_) return UnavailableError("the range at {} fails", range.offset);
    return Content().substr(range.offset, range.size_bytes);
  }
  void Open() {
    MutexLock lock(mutex_);
    open_ = true;
    opened_.NotifyAll();
  }
  void Shut() {
    MutexLock lock(mutex_);
    open_ = false;
  }
  void FailAt(uint64_t offset) {
    MutexLock lock(mutex_);
    fails_at_ = offset;
  }
  size_t most() const {
    MutexLock lock(mutex_);
    return most_;
  }
  size_t running() const {
    MutexLock lock(mutex_);
    return running_;
  }
  // Ascending.
  std::vector<FileRange> asked() const {
    MutexLock lock(mutex_);
    std::vector<FileRange> all = asked_;
    std::ranges::sort(all, {}, &FileRange::offset);
    return all;
  }

 private:
  mutable Mutex mutex_;
  CondVar opened_;
  bool open_ GUARDED_BY(mutex_) = true;
  uint64_t fails_at_ GUARDED_BY(mutex_) = UINT64_MAX;
  size_t running_ GUARDED_BY(mutex_) = 0;
  size_t most_ GUARDED_BY(mutex_) = 0;
  std::vector<FileRange> asked_ GUARDED_BY(mutex_);
};

std::unique_ptr<RemoteFile> FileAt(Far& far, Executor& executor, size_t requests_max = 4) {
  return std::make_unique<RemoteFile>(
      RemoteFile::Options{
          .size_bytes = kSize, .request_bytes_max = 300, .requests_max = requests_max},
      [&far](FileRange range) { return far.Fetch(range); }, executor);
}

// Files that are read from far away, and are otherwise those of `under`.
class FarFiles final : public FileSystem {
 public:
  FarFiles(FileSystem& under, Far& far, Executor& executor)
      : under_(under), far_(far), executor_(executor) {}
  Result<std::unique_ptr<ReadableFile>> OpenForRead(const std::string&) override {
    return FileAt(far_, executor_, 8);
  }
  Result<std::vector<std::byte>> ReadFile(const std::string& path, uint64_t max) override {
    return under_.ReadFile(path, max);
  }
  Result<std::unique_ptr<AppendFile>> OpenForAppend(const std::string& path) override {
    return under_.OpenForAppend(path);
  }
  Result<std::unique_ptr<AppendFile>> Create(const std::string& path) override {
    return under_.Create(path);
  }
  Status Rename(const std::string& from, const std::string& to) override {
    return under_.Rename(from, to);
  }
  Status ReplaceFile(const std::string& path, ByteSpan bytes) override {
    return under_.ReplaceFile(path, bytes);
  }
  Result<std::vector<std::string>> List(const std::string& folder) override {
    return under_.List(folder);
  }
  Status MakeFolders(const std::string& folder) override { return under_.MakeFolders(folder); }
  Status Remove(const std::string& path) override { return under_.Remove(path); }
  Status RemoveFolder(const std::string& folder) override { return under_.RemoveFolder(folder); }
  Result<std::unique_ptr<FileLock>> Lock(const std::string& path) override {
    return under_.Lock(path);
  }

 private:
  FileSystem& under_;
  Far& far_;
  Executor& executor_;
};

std::vector<FileRange> Hundreds() {
  std::vector<FileRange> ranges;
  for (uint64_t at = 0; at < kSize; at += 100) ranges.push_back({.offset = at, .size_bytes = 100});
  return ranges;
}

// Bytes from `offset` on, or why there are none.
std::string ReadAt(RemoteFile& file, uint64_t offset, size_t size) {
  std::vector<std::byte> buffer(size);
  const auto got = file.ReadAt(offset, buffer);
  if (!got.ok()) return ToString(got.status());
  return std::string(AsText(ByteSpan(buffer).first(*got)));
}

}  // namespace

TEST_CASE("a remote file is read by requests of limited size", "[shared_fs]") {
  Far far;
  Executor executor(4, 100);
  const auto file = FileAt(far, executor);
  CHECK(ReadAt(*file, 100, 700) == Content().substr(100, 700));
  CHECK(far.asked() == std::vector<FileRange>{{100, 300}, {400, 300}, {700, 100}});
  CHECK(ReadAt(*file, 990, 100) == Content().substr(990));
  CHECK(ReadAt(*file, kSize, 1).empty());
}

TEST_CASE("ranges that will be read come ahead, several at once, within their memory",
          "[shared_fs]") {
  Far far;
  Executor executor(8, 100);
  const auto file = FileAt(far, executor, 4);
  far.Shut();
  CHECK(file->WillRead(Hundreds(), 350) == 300);  // three at once
  REQUIRE(Eventually([&] { return far.running() == 3; }));
  far.Open();
  for (uint64_t at = 0; at < kSize; at += 50) {
    CHECK(ReadAt(*file, at, 50) == Content().substr(at, 50));
  }
  CHECK(far.asked() == Hundreds());  // each byte once
  CHECK(far.most() == 3);
}

TEST_CASE("nothing is read ahead without room for two requests", "[shared_fs]") {
  Far far;
  Executor executor(4, 100);
  const auto file = FileAt(far, executor);
  CHECK(file->WillRead(Hundreds(), 199) == 0);
  CHECK(file->WillRead({{0, 100}}, 10'000) == 0);
  CHECK(file->WillRead({{0, 400}, {400, 400}}, 10'000) == 0);  // larger than a request may be
  CHECK(FileAt(far, executor, 1)->WillRead(Hundreds(), 10'000) == 0);
  CHECK(far.asked().empty());
}

TEST_CASE("what is not read as it was said is read all the same", "[shared_fs]") {
  Far far;
  Executor executor(4, 100);
  const auto file = FileAt(far, executor);
  REQUIRE(file->WillRead({{0, 100}, {200, 100}, {400, 100}, {800, 100}}, 400) == 400);
  CHECK(ReadAt(*file, 400, 100) == Content().substr(400, 100));
  CHECK(ReadAt(*file, 210, 20) == Content().substr(210, 20));    // left behind
  CHECK(ReadAt(*file, 100, 50) == Content().substr(100, 50));    // in no range
  CHECK(ReadAt(*file, 850, 100) == Content().substr(850, 100));  // across an end
  CHECK(ReadAt(*file, 810, 90) == Content().substr(810, 90));
  CHECK(ReadAt(*file, 0, kSize) == Content());
}

TEST_CASE("a range that fails ahead fails where it is read, and may be read again", "[shared_fs]") {
  Far far;
  Executor executor(4, 100);
  const auto file = FileAt(far, executor);
  far.FailAt(100);
  REQUIRE(file->WillRead(Hundreds(), 400) == 400);
  CHECK(ReadAt(*file, 0, 100) == Content().substr(0, 100));
  CHECK(ReadAt(*file, 100, 100) == "UNAVAILABLE: the range at 100 fails");
  far.FailAt(UINT64_MAX);
  CHECK(ReadAt(*file, 100, 100) == Content().substr(100, 100));
  CHECK(ReadAt(*file, 200, 100) == Content().substr(200, 100));
}

TEST_CASE("an executor that is busy costs only time", "[shared_fs]") {
  Far far;
  Executor executor(1, 1);
  const auto file = FileAt(far, executor);
  (void)file->WillRead(Hundreds(), 400);
  for (uint64_t at = 0; at < kSize; at += 100) {
    CHECK(ReadAt(*file, at, 100) == Content().substr(at, 100));
  }
}

TEST_CASE("a file ends while its ranges are on their way", "[shared_fs]") {
  Far far;
  Executor executor(4, 100);
  auto file = FileAt(far, executor);
  far.Shut();
  REQUIRE(file->WillRead(Hundreds(), 400) == 400);
  REQUIRE(Eventually([&] { return far.running() == 4; }));
  file.reset();
  far.Open();
  executor.Stop();
  CHECK(far.asked().size() == 4);
}

TEST_CASE("a verified file asks ahead for the pieces of ranges, in few requests", "[shared_fs]") {
  FaultFileSystem files;
  auto pieces = FileWriter::Create(files, "d", "full", 10);
  REQUIRE(pieces.ok());
  REQUIRE(pieces->Append(AsBytes(Content())).ok());
  const auto listed = pieces->Finish();
  REQUIRE(listed.ok());
  // The same bytes behind a file system that is far away.
  Far far;
  Executor executor(8, 100);
  FarFiles remote(files, far, executor);
  auto file = VerifiedFile::Open(remote, "d", *listed);
  REQUIRE(file.ok());
  std::vector<std::byte> buffer;
  REQUIRE(file->Read(0, 10, buffer).ok());  // its piece is kept: it is not asked for again
  // Pieces 0 to 39 and 60 to 79: 590 bytes, an eighth of them a request, of whole pieces.
  CHECK(file->WillRead({{0, 395}, {600, 100}, {650, 150}}, 10'000) == 8 * 70);
  for (const auto& [offset, size] : {FileRange{0, 395}, FileRange{600, 200}}) {
    const auto range = file->Read(offset, size, buffer);
    REQUIRE(range.ok());
    CHECK(AsText(*range) == Content().substr(offset, size));
  }
  uint64_t asked = 0;
  for (const FileRange& range : far.asked()) asked += range.size_bytes;
  CHECK(asked == 10 + 390 + 200);
  CHECK(far.asked().size() == 1 + 6 + 3);
  auto local = VerifiedFile::Open(files, "d", *listed);
  REQUIRE(local.ok());
  CHECK(local->WillRead({{0, 1000}}, 10'000) == 0);  // a file of this machine
}

}  // namespace dws::shared
