// Slices begin at cache lines, because captures compare whole lines.
#include "common/transport/same_host/snapshot_memory.h"

#include <fcntl.h>
#include <linux/memfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <optional>
#include <string>
#include <utility>

#include "common/base/check.h"

namespace dws {
namespace {

constexpr size_t kSliceAlignment = 64;
constexpr size_t kPageBytes = 4096;
// The most that a registration waits for its snapshot's memory.
constexpr std::chrono::seconds kPopulateTime{5};
// Several huge pages: a thread takes so much at once.
constexpr size_t kPopulatedAtOnce = size_t{32} << 20;
constexpr size_t kHugePageBytes = size_t{2} << 20;
// Nobody can truncate the file under a mapping, or map it to write; the sender's own mapping stays.
constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;

Result<struct stat> StatOf(const UniqueFd& file) {
  struct stat found = {};
  if (::fstat(file.get(), &found) != 0) return ErrnoError(errno, "a snapshot's descriptor");
  return found;
}

Result<std::byte*> MapFile(const UniqueFd& file, size_t size, int protection) {
  void* const mapped = ::mmap(nullptr, size, protection, MAP_SHARED, file.get(), 0);
  if (mapped == MAP_FAILED) {
    return ErrnoError(errno, fmt::format("mapping a snapshot of {} bytes", size));
  }
  (void)::madvise(mapped, size, MADV_HUGEPAGE);  // fewer TLB misses if the kernel allows it
  return static_cast<std::byte*>(mapped);
}

size_t InHugePages(size_t size) { return CeilDiv(size, kHugePageBytes) * kHugePageBytes; }

// Returns nothing if the operator has not reserved enough huge pages. All pages are taken now,
// because a lack of them that shows later kills the process.
std::optional<UniqueFd> HugeFile(size_t size) {
  if (size < kHugePageBytes) return std::nullopt;
  UniqueFd file(
      ::memfd_create("dws-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_HUGETLB | MFD_HUGE_2MB));
  if (!file.valid()) return std::nullopt;
  const auto in_pages = static_cast<off_t>(InHugePages(size));
  if (::ftruncate(file.get(), in_pages) != 0) return std::nullopt;
  if (::fallocate(file.get(), 0, 0, in_pages) != 0) return std::nullopt;
  return file;
}

Result<UniqueFd> SmallFile(size_t size) {
  UniqueFd file(::memfd_create("dws-snapshot", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!file.valid()) return ErrnoError(errno, "creating a snapshot's memory");
  if (::ftruncate(file.get(), static_cast<off_t>(size)) != 0) {
    return ErrnoError(errno, fmt::format("a snapshot of {} bytes cannot be allocated", size));
  }
  return file;
}

// Huge pages belong to another file system, which numbers its files independently.
uint64_t IdOf(const struct stat& file) {
  return static_cast<uint64_t>(file.st_dev) << 48 ^ static_cast<uint64_t>(file.st_ino);
}

}  // namespace

SnapshotPlaces::SnapshotPlaces(const RankLayout& layout) {
  for (const RankLayout::SliceEntry& slice : layout.slices()) {
    offsets_.push_back(content_bytes_);
    content_bytes_ += CeilDiv(slice.size_bytes(), kSliceAlignment) * kSliceAlignment;
  }
  stamps_offset_ = CeilDiv(content_bytes_, kPageBytes) * kPageBytes;
  size_bytes_ = stamps_offset_ + std::max<size_t>(layout.block_count(), 1) * sizeof(BlockStamp);
}

SnapshotMemory::SnapshotMemory(UniqueFd file, const struct stat& found, SnapshotPlaces places,
                               size_t block_count, std::byte* bytes)
    : file_(std::move(file)),
      id_(IdOf(found)),
      mapped_bytes_(static_cast<size_t>(found.st_size)),
      places_(std::move(places)),
      block_count_(block_count),
      bytes_(bytes),
      stamps_(reinterpret_cast<BlockStamp*>(bytes + places_.stamps_offset())) {}

SnapshotMemory::~SnapshotMemory() { ::munmap(bytes_, mapped_bytes_); }

Result<std::unique_ptr<SnapshotMemory>> SnapshotMemory::Create(const RankLayout& layout,
                                                               bool huge_pages) {
  SnapshotPlaces places(layout);
  std::optional<UniqueFd> file;
  if (huge_pages) file = HugeFile(places.size_bytes());
  if (!file.has_value()) {
    DWS_ASSIGN_OR_RETURN(file, SmallFile(places.size_bytes()));
  }
  DWS_ASSIGN_OR_RETURN(const struct stat made, StatOf(*file));
  DWS_ASSIGN_OR_RETURN(std::byte* const bytes,
                       MapFile(*file, static_cast<size_t>(made.st_size), PROT_READ | PROT_WRITE));
  std::unique_ptr<SnapshotMemory> memory(
      new SnapshotMemory(*std::move(file), made, std::move(places), layout.block_count(), bytes));
  // Only a hint, as in own_pages.cc: without it each new page of 4 KiB costs a page fault.
  ::madvise(bytes, memory->mapped_bytes_, MADV_HUGEPAGE);
  if (::fcntl(memory->file_.get(), F_ADD_SEALS, kSeals) != 0) {
    const int why = errno;
    if (why != EINVAL) return ErrnoError(why, "sealing a snapshot's memory");
    memory->shared_ = false;  // a kernel before 5.1
  }
  return memory;
}

void SnapshotMemory::Populate(ThreadPool& pool) {
  const auto until = std::chrono::steady_clock::now() + kPopulateTime;
  pool.ParallelFor(CeilDiv(mapped_bytes_, kPopulatedAtOnce), [&](size_t chunk, size_t) {
    if (std::chrono::steady_clock::now() >= until) return;
    const size_t at = chunk * kPopulatedAtOnce;
    // It fails on kernels before 5.14, and where memory is short: then pages come when they are
    // written.
    ::madvise(bytes_ + at, std::min(kPopulatedAtOnce, mapped_bytes_ - at), MADV_POPULATE_WRITE);
  });
}

Result<std::unique_ptr<const SnapshotMemory>> SnapshotMemory::Map(UniqueFd descriptor,
                                                                  const RankLayout& layout) {
  SnapshotPlaces places(layout);
  DWS_ASSIGN_OR_RETURN(const struct stat found, StatOf(descriptor));
  const auto size = static_cast<uint64_t>(found.st_size);
  if (size != places.size_bytes() && size != InHugePages(places.size_bytes())) {
    return InvalidArgumentError("a snapshot's memory has {} bytes, its layout needs {}", size,
                                places.size_bytes());
  }
  const int seals = ::fcntl(descriptor.get(), F_GET_SEALS);
  if (seals < 0 || (seals & F_SEAL_SHRINK) == 0) {
    return InvalidArgumentError("a snapshot's memory can be made smaller while it is read");
  }
  DWS_ASSIGN_OR_RETURN(std::byte* const bytes, MapFile(descriptor, size, PROT_READ));
  return std::unique_ptr<const SnapshotMemory>(new SnapshotMemory(
      std::move(descriptor), found, std::move(places), layout.block_count(), bytes));
}

Result<UniqueFd> SnapshotMemory::ReadOnlyDescriptor() const {
  if (!shared_) {
    return FailedPreconditionError("the sender's kernel cannot keep others from writing to it");
  }
  UniqueFd opened(
      ::open(fmt::format("/proc/self/fd/{}", file_.get()).c_str(), O_RDONLY | O_CLOEXEC));
  if (!opened.valid()) return ErrnoError(errno, "opening a snapshot's memory to be read");
  return opened;
}

}  // namespace dws
