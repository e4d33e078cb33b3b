#include "common/memory/host/host_region.h"

#include <fcntl.h>
#include <sys/mman.h>

#include <catch2/catch.hpp>
#include <string>
#include <utility>

#include "common/model/limits.h"

namespace dws {
namespace {

UniqueFd Duplicate(const UniqueFd& fd) { return UniqueFd(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0)); }

UniqueFd MemFd(uint64_t size_bytes, int seals) {
  UniqueFd fd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  REQUIRE(::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) == 0);
  if (seals != 0) REQUIRE(::fcntl(fd.get(), F_ADD_SEALS, seals) == 0);
  return fd;
}

// Checks that mapping is refused with INVALID_ARGUMENT and these words.
void CheckRefused(UniqueFd fd, uint64_t size_bytes, Access access, const std::string& words) {
  const Result<HostRegion> region = HostRegion::Map(std::move(fd), size_bytes, access);
  REQUIRE(absl::IsInvalidArgument(region.status()));
  CHECK_THAT(std::string(Message(region.status())), Catch::Contains(words));
}

TEST_CASE("each side of a region sees the writes of the other side", "[memory]") {
  Result<CreatedRegion> created = CreateHostRegion("weights", 5000);
  REQUIRE(created.ok());
  Result<HostRegion> mapped = HostRegion::Map(Duplicate(created->fd), 5000, Access::kReadWrite);
  REQUIRE(mapped.ok());
  created->region.mutable_bytes()[4999] = std::byte{7};
  CHECK(mapped->bytes()[4999] == std::byte{7});
  mapped->mutable_bytes()[0] = std::byte{9};
  CHECK(created->region.bytes()[0] == std::byte{9});
}

TEST_CASE("a read-only descriptor of a sealed region is mapped for reading only", "[memory]") {
  Result<CreatedRegion> created = CreateHostRegion("weights", 4096);
  REQUIRE(created.ok());
  created->region.mutable_bytes()[1] = std::byte{42};
  Result<UniqueFd> read_only = ReopenReadOnly(created->fd);
  REQUIRE(read_only.ok());

  // The kernel reports seals of read-only descriptors and refuses to map them for writing.
  CHECK(::fcntl(read_only->get(), F_GET_SEALS) == (F_SEAL_SHRINK | F_SEAL_GROW));
  CHECK(::mmap(nullptr, 4096, PROT_WRITE, MAP_SHARED, read_only->get(), 0) == MAP_FAILED);

  Result<HostRegion> region = HostRegion::Map(Duplicate(*read_only), 4096, Access::kReadOnly);
  REQUIRE(region.ok());
  CHECK(region->bytes()[1] == std::byte{42});
  CheckRefused(*std::move(read_only), 4096, Access::kReadWrite, "read-only");
}

TEST_CASE("a region that is not sealed against shrinking and growing is refused", "[memory]") {
  CheckRefused(MemFd(4096, 0), 4096, Access::kReadOnly, "F_SEAL_SHRINK");
  CheckRefused(MemFd(4096, F_SEAL_SHRINK), 4096, Access::kReadOnly, "F_SEAL_SHRINK");
  CheckRefused(MemFd(4096, F_SEAL_GROW), 4096, Access::kReadOnly, "F_SEAL_SHRINK");
}

TEST_CASE("a region of another size than announced is refused with both sizes", "[memory]") {
  const int seals = F_SEAL_SHRINK | F_SEAL_GROW;
  CheckRefused(MemFd(4096, seals), 8192, Access::kReadOnly, "expected a memory region of 8192");
  CheckRefused(MemFd(4096, seals), 4095, Access::kReadOnly, "found 4096");
  CheckRefused(MemFd(4096, seals), 0, Access::kReadOnly, "found 0");
  CheckRefused(MemFd(4096, seals), limits::kRegionBytesMax + 1, Access::kReadOnly, "1 to");
}

TEST_CASE("a descriptor that is not a memfd is refused", "[memory]") {
  CheckRefused(UniqueFd(::open("/proc/self/exe", O_RDONLY | O_CLOEXEC)), 4096, Access::kReadOnly,
               "memfd");
  CheckRefused(UniqueFd(::open("/dev/null", O_RDWR | O_CLOEXEC)), 4096, Access::kReadWrite,
               "memfd");
  CheckRefused(UniqueFd(), 4096, Access::kReadOnly, "found none");
}

TEST_CASE("a mapping outlives its descriptor and ends with its region", "[memory]") {
  std::byte* data = nullptr;
  {
    Result<HostRegion> mapped =
        HostRegion::Map(MemFd(4096, F_SEAL_SHRINK | F_SEAL_GROW), 4096, Access::kReadWrite);
    REQUIRE(mapped.ok());
    HostRegion moved = *std::move(mapped);
    data = moved.mutable_bytes().data();
    data[0] = std::byte{1};
    HostRegion assigned;
    assigned = std::move(moved);
    CHECK(moved.bytes().empty());  // NOLINT: a moved-from region is empty by contract
    CHECK(assigned.bytes()[0] == std::byte{1});
    CHECK(::msync(data, 4096, MS_ASYNC) == 0);
  }
  CHECK(::msync(data, 4096, MS_ASYNC) != 0);  // ENOMEM: nothing is mapped there
}

}  // namespace
}  // namespace dws
