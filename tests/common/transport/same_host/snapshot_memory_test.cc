#include "common/transport/same_host/snapshot_memory.h"

#include <fcntl.h>
#include <linux/magic.h>
#include <sys/mman.h>
#include <sys/vfs.h>
#include <unistd.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <fstream>
#include <string>

#include "common/transport/same_host/host_id.h"

namespace dws {
namespace {

RankLayout LayoutOf(uint64_t elements) {
  auto layout =
      RankLayout::Create({Shard::Whole({.name = "a", .dtype = DType::kBF16, .shape = {elements}}),
                          Shard::Whole({.name = "b", .dtype = DType::kF32, .shape = {33}}),
                          Shard::Whole({.name = "empty", .dtype = DType::kF32, .shape = {0}})});
  REQUIRE(layout.ok());
  return *std::move(layout);
}

TEST_CASE("another mapping of a snapshot reads the bytes and the stamps", "[same_host]") {
  const RankLayout layout = LayoutOf(100'001);
  const auto memory = SnapshotMemory::Create(layout);
  REQUIRE(memory.ok());
  auto descriptor = (*memory)->ReadOnlyDescriptor();
  REQUIRE(descriptor.ok());
  const auto mapped = SnapshotMemory::Map(*std::move(descriptor), layout);
  REQUIRE(mapped.ok());
  CHECK((*mapped)->id() == (*memory)->id());
  CHECK((*mapped)->stamps().size() == layout.block_count());

  const size_t b = (*memory)->places().slice_offset(RankSlice(1));
  CHECK(b % 64 == 0);
  CHECK(b >= 200'002);
  {
    const StampedChange change((*memory)->stamps()[2], WeightVersion(7));
    (*memory)->content()[b] = std::byte{42};
    CHECK_FALSE(AllAt((*mapped)->stamps().subspan(2, 1), WeightVersion(7)));
    CHECK_FALSE(AllAt((*mapped)->stamps(), WeightVersion(~uint64_t{0})));
  }
  CHECK((*mapped)->content()[b] == std::byte{42});
  CHECK(AllAt((*mapped)->stamps(), WeightVersion(7)));
  CHECK_FALSE(AllAt((*mapped)->stamps(), WeightVersion(6)));
  CHECK(AllAt((*mapped)->stamps().first(2), WeightVersion(1)));
}

// Reads as the kernel says, so that the test follows a machine's configuration.
uint64_t HugePages(const std::string& field) {
  std::ifstream file("/proc/meminfo");
  for (std::string line; std::getline(file, line);) {
    if (line.starts_with(field + ":")) return std::stoull(line.substr(field.size() + 1));
  }
  return 0;
}

TEST_CASE("a snapshot lies in reserved huge pages if there are enough", "[same_host]") {
  constexpr uint64_t kPage = uint64_t{2} << 20;
  const uint64_t free = HugePages("HugePages_Free") - HugePages("HugePages_Rsvd");
  if (free == 0) WARN("no huge pages are reserved here: only the small ones are tried");
  const RankLayout layout = LayoutOf(kPage);  // of 2 bytes each, and a few more
  {
    const auto memory = SnapshotMemory::Create(layout, true);
    REQUIRE(memory.ok());
    auto descriptor = (*memory)->ReadOnlyDescriptor();
    REQUIRE(descriptor.ok());
    struct statfs found = {};
    REQUIRE(::fstatfs(descriptor->get(), &found) == 0);
    CHECK((found.f_type == HUGETLBFS_MAGIC) == (free >= 3));
    CHECK(::mmap(nullptr, 2 * kPage, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor->get(), 0) ==
          MAP_FAILED);
    CHECK(::ftruncate(descriptor->get(), 0) != 0);
    const auto mapped = SnapshotMemory::Map(*std::move(descriptor), layout);
    REQUIRE(mapped.ok());
    (*memory)->content()[2 * kPage - 1] = std::byte{42};
    CHECK((*mapped)->content()[2 * kPage - 1] == std::byte{42});
    CHECK((*mapped)->id() == (*memory)->id());
  }
  // More than there are.
  CHECK(SnapshotMemory::Create(LayoutOf((free + 1) * kPage), true).ok());
}

TEST_CASE("whoever is given a snapshot can neither write it nor shorten it", "[same_host]") {
  const RankLayout layout = LayoutOf(1000);
  const auto memory = SnapshotMemory::Create(layout);
  REQUIRE(memory.ok());
  const size_t size = (*memory)->places().size_bytes();
  const auto descriptor = (*memory)->ReadOnlyDescriptor();
  REQUIRE(descriptor.ok());
  CHECK(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, descriptor->get(), 0) ==
        MAP_FAILED);
  CHECK(::ftruncate(descriptor->get(), 0) != 0);
  // Nor by opening it again.
  const std::string path = "/proc/self/fd/" + std::to_string(descriptor->get());
  const UniqueFd again(::open(path.c_str(), O_RDWR | O_CLOEXEC));
  if (again.valid()) {
    CHECK(::mmap(nullptr, size, PROT_READ | PROT_WRITE, MAP_SHARED, again.get(), 0) == MAP_FAILED);
    CHECK(::ftruncate(again.get(), 0) != 0);
    const char byte = 1;
    CHECK(::pwrite(again.get(), &byte, 1, 0) < 0);
  }
  void* const mapped = ::mmap(nullptr, size, PROT_READ, MAP_SHARED, descriptor->get(), 0);
  REQUIRE(mapped != MAP_FAILED);
  CHECK(::mprotect(mapped, size, PROT_READ | PROT_WRITE) != 0);
  ::munmap(mapped, size);
}

TEST_CASE("what is no snapshot of the layout is refused", "[same_host]") {
  const RankLayout layout = LayoutOf(1000);
  const auto memory = SnapshotMemory::Create(layout);
  REQUIRE(memory.ok());
  auto descriptor = (*memory)->ReadOnlyDescriptor();
  REQUIRE(descriptor.ok());
  const auto other = SnapshotMemory::Map(*std::move(descriptor), LayoutOf(100'000));
  REQUIRE(absl::IsInvalidArgument(other.status()));
  CHECK_THAT(std::string(Message(other.status())), Catch::Matchers::Contains("its layout needs"));

  // The file has the right size, but its other end could take pages away while they are read.
  UniqueFd file(::memfd_create("loose", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(file.get(), static_cast<off_t>((*memory)->places().size_bytes())) == 0);
  const auto loose = SnapshotMemory::Map(std::move(file), layout);
  REQUIRE(absl::IsInvalidArgument(loose.status()));
  CHECK_THAT(std::string(Message(loose.status())), Catch::Matchers::Contains("made smaller"));
}

TEST_CASE("a host has an id", "[same_host]") {
  CHECK(HostId().size() == 36);
  CHECK(HostId() == HostId());
}

}  // namespace
}  // namespace dws
