#include "common/spool/spool.h"

#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <filesystem>
#include <memory>
#include <vector>

#include "tests/fakes/temp_folder.h"

namespace dws {
namespace {

std::vector<std::byte> Bytes(size_t count, int first) {
  std::vector<std::byte> bytes(count);
  for (size_t i = 0; i < count; ++i) bytes[i] = static_cast<std::byte>(first + static_cast<int>(i));
  return bytes;
}

}  // namespace

TEST_CASE("a spool gives back what was appended, in memory or on disk", "[spool]") {
  const TempFolder folder;
  const uint64_t memory_bytes_max = GENERATE(0, 100, 1000);
  Spool spool(
      {.folder = folder.path(), .memory_bytes_max = memory_bytes_max, .size_bytes_max = 1000});
  for (int i = 0; i < 10; ++i) REQUIRE(spool.Append(Bytes(50, i)).ok());
  CHECK(spool.on_disk() == (memory_bytes_max < 500));
  CHECK(spool.size_bytes() == 500);
  // The file is unlinked, so a crash leaves nothing behind.
  CHECK(std::filesystem::is_empty(folder.path()));

  std::vector<std::byte> buffer;
  const auto middle = spool.Read(140, 20, buffer);
  REQUIRE(middle.ok());
  std::vector<std::byte> expected = Bytes(10, 2 + 40);
  const std::vector<std::byte> next = Bytes(10, 3);
  expected.insert(expected.end(), next.begin(), next.end());
  CHECK(std::vector<std::byte>(middle->begin(), middle->end()) == expected);
}

TEST_CASE("reads outside a spool and appends beyond its size limit are refused", "[spool]") {
  const TempFolder folder;
  Spool spool({.folder = folder.path(), .memory_bytes_max = 10, .size_bytes_max = 64});
  REQUIRE(spool.Append(Bytes(64, 0)).ok());
  CHECK(absl::IsDataLoss(spool.Append(Bytes(1, 0))));
  std::vector<std::byte> buffer;
  CHECK(spool.Read(64, 0, buffer).ok());
  CHECK(absl::IsDataLoss(spool.Read(60, 5, buffer).status()));
  CHECK(absl::IsDataLoss(spool.Read(65, 0, buffer).status()));
  CHECK(absl::IsDataLoss(spool.Read(1, ~uint64_t{0}, buffer).status()));
}

TEST_CASE("a cancelled spool accepts no bytes", "[spool]") {
  bool wanted = true;
  Spool spool({.memory_bytes_max = 100, .size_bytes_max = 64, .wanted = [&] { return wanted; }});
  REQUIRE(spool.Append(Bytes(10, 1)).ok());
  wanted = false;
  CHECK(absl::IsCancelled(spool.Append(Bytes(10, 1))));
  CHECK(spool.size_bytes() == 10);
}

TEST_CASE("a transfer that does not fit in memory goes to disk from its first byte", "[spool]") {
  const TempFolder folder;
  Spool spool({.folder = folder.path(),
               .memory_bytes_max = 100,
               .size_bytes_max = 1000,
               .size_bytes_expected = 101});
  REQUIRE(spool.Append(Bytes(10, 5)).ok());
  CHECK(spool.on_disk());
  std::vector<std::byte> buffer;
  const auto read = spool.Read(0, 10, buffer);
  REQUIRE(read.ok());
  CHECK(std::vector<std::byte>(read->begin(), read->end()) == Bytes(10, 5));
  // The expected size is not enforced.
  REQUIRE(spool.Append(Bytes(500, 6)).ok());
  CHECK(spool.size_bytes() == 510);
}

TEST_CASE("a spool that cannot create its file names the folder", "[spool]") {
  Spool spool({.folder = "/nonexistent/folder", .memory_bytes_max = 0, .size_bytes_max = 64});
  const Status status = spool.Append(Bytes(1, 0));
  CHECK_FALSE(status.ok());
  CHECK(Message(status).find("/nonexistent/folder") != std::string_view::npos);
}

TEST_CASE("what one spool no longer needs is room for the next", "[spool]") {
  constexpr uint64_t kSize = uint64_t{40} << 20;
  const auto spare = std::make_shared<SparePages>();
  const TempFolder folder;
  Spool::Options options{.folder = folder.path(),
                         .memory_bytes_max = 2 * kSize,
                         .size_bytes_max = 2 * kSize,
                         .spare = spare};
  const std::byte* at = nullptr;
  {
    Spool first(options);
    REQUIRE(first.Allocate(kSize).ok());
    REQUIRE(first.Fill(kSize - 10, Bytes(10, 1)).ok());
    at = first.memory().data();
    CHECK(spare->size_bytes() == 0);
  }
  CHECK(spare->size_bytes() == kSize);
  {
    Spool second(options);
    REQUIRE(second.Allocate(kSize).ok());
    CHECK(second.memory().data() == at);
    CHECK(second.memory_bytes() == kSize);
    CHECK(spare->size_bytes() == 0);
  }
  // Appended bytes take more memory: little at first, and then as much as there is already. So does
  // a file.
  Spool little(options);
  REQUIRE(little.Append({}).ok());
  REQUIRE(little.Append(Bytes(10, 1)).ok());
  CHECK(spare->size_bytes() == kSize);
  SECTION("in memory") { options.size_bytes_expected = kSize; }
  SECTION("in a file") { options.memory_bytes_max = 5; }
  Spool appended(options);
  REQUIRE(appended.Append(Bytes(10, 1)).ok());
  CHECK(spare->size_bytes() == 0);
}

TEST_CASE("a spool's file takes bytes of a mapping that nobody has read", "[spool]") {
  constexpr size_t kSize = 3 * 4096 + 100;
  const TempFolder folder;
  UniqueFd file(::memfd_create("test", MFD_CLOEXEC));
  const std::vector<std::byte> bytes = Bytes(kSize, 3);
  REQUIRE(::write(file.get(), bytes.data(), kSize) == ssize_t{kSize});
  void* const mapped = ::mmap(nullptr, kSize, PROT_READ, MAP_SHARED, file.get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  const ByteSpan source(static_cast<const std::byte*>(mapped), kSize);
  Spool spool({.folder = folder.path(), .size_bytes_max = kSize});
  REQUIRE(spool.Allocate(kSize).ok());
  REQUIRE(spool.Fill(5000, source.subspan(5000)).ok());
  REQUIRE(spool.Fill(0, source.first(5000)).ok());
  std::vector<std::byte> buffer;
  const auto read = spool.Read(0, kSize, buffer);
  REQUIRE(read.ok());
  CHECK(std::equal(read->begin(), read->end(), bytes.begin(), bytes.end()));
  CHECK(::munmap(mapped, kSize) == 0);
}

}  // namespace dws
