#include "common/memory/host/host_region.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

#include <cerrno>
#include <string>
#include <utility>

#include "common/base/check.h"
#include "common/model/limits.h"

namespace dws {
namespace {

constexpr int kSeals = F_SEAL_SHRINK | F_SEAL_GROW;

Status CheckDescriptor(const UniqueFd& fd, uint64_t size_bytes, Access access) {
  struct stat status = {};
  if (!fd.valid() || ::fstat(fd.get(), &status) != 0) {
    return InvalidArgumentError("expected the descriptor of a memory region, found none");
  }
  // Only memfds have seals: the call fails for every other kind of file.
  const int seals = ::fcntl(fd.get(), F_GET_SEALS);
  if (!S_ISREG(status.st_mode) || seals < 0) {
    return InvalidArgumentError(
        "expected a memfd as memory region, found another kind of file (mode {:o}); create it with "
        "memfd_create(2)",
        status.st_mode);
  }
  if ((seals & kSeals) != kSeals) {
    return InvalidArgumentError(
        "expected a memory region sealed with F_SEAL_SHRINK|F_SEAL_GROW ({:#x}), found seals "
        "{:#x}; seal it before it is registered",
        kSeals, seals);
  }
  if (static_cast<uint64_t>(status.st_size) != size_bytes) {
    return InvalidArgumentError("expected a memory region of {} bytes, found {}", size_bytes,
                                status.st_size);
  }
  const int mode = ::fcntl(fd.get(), F_GETFL) & O_ACCMODE;
  if (access == Access::kReadWrite && mode != O_RDWR) {
    return InvalidArgumentError(
        "expected a memory region that may be written, found a read-only descriptor");
  }
  return OkStatus();
}

}  // namespace

Result<HostRegion> HostRegion::Map(UniqueFd fd, uint64_t size_bytes, Access access) {
  if (size_bytes == 0 || size_bytes > limits::kRegionBytesMax) {
    return InvalidArgumentError("expected a memory region of 1 to {} bytes, found {}",
                                limits::kRegionBytesMax, size_bytes);
  }
  DWS_RETURN_IF_ERROR(CheckDescriptor(fd, size_bytes, access));
  const int protection = access == Access::kReadWrite ? PROT_READ | PROT_WRITE : PROT_READ;
  void* const data = ::mmap(nullptr, size_bytes, protection, MAP_SHARED, fd.get(), 0);
  if (data == MAP_FAILED) {
    return ErrnoError(errno, fmt::format("cannot map a memory region of {} bytes", size_bytes));
  }
  return HostRegion(static_cast<std::byte*>(data), size_bytes, access);
}

HostRegion::HostRegion(HostRegion&& other) noexcept
    : data_(std::exchange(other.data_, nullptr)),
      size_bytes_(std::exchange(other.size_bytes_, 0)),
      access_(other.access_) {}

HostRegion& HostRegion::operator=(HostRegion&& other) noexcept {
  HostRegion taken(std::move(other));
  std::swap(data_, taken.data_);
  std::swap(size_bytes_, taken.size_bytes_);
  std::swap(access_, taken.access_);
  return *this;
}

HostRegion::~HostRegion() {
  if (data_ != nullptr) DWS_CHECK(::munmap(data_, size_bytes_) == 0);
}

MutableByteSpan HostRegion::mutable_bytes() const {
  DWS_CHECK(data_ == nullptr || access_ == Access::kReadWrite);
  return {data_, size_bytes_};
}

Result<CreatedRegion> CreateHostRegion(std::string_view name, uint64_t size_bytes) {
  UniqueFd fd(::memfd_create(std::string(name).c_str(), MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!fd.valid()) return ErrnoError(errno, fmt::format("cannot create the memfd {}", name));
  if (::ftruncate(fd.get(), static_cast<off_t>(size_bytes)) != 0 ||
      ::fcntl(fd.get(), F_ADD_SEALS, kSeals) != 0) {
    return ErrnoError(errno, fmt::format("cannot size and seal the memfd {}", name));
  }
  UniqueFd to_map(::fcntl(fd.get(), F_DUPFD_CLOEXEC, 0));
  if (!to_map.valid()) return ErrnoError(errno, "cannot duplicate a descriptor");
  DWS_ASSIGN_OR_RETURN(HostRegion region,
                       HostRegion::Map(std::move(to_map), size_bytes, Access::kReadWrite));
  return CreatedRegion{.region = std::move(region), .fd = std::move(fd)};
}

Result<UniqueFd> ReopenReadOnly(const UniqueFd& fd) {
  // A duplicate would share the open file description and its mode; /proc makes a new one.
  const std::string path = fmt::format("/proc/self/fd/{}", fd.get());
  UniqueFd reopened(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!reopened.valid()) return ErrnoError(errno, fmt::format("cannot reopen {}", path));
  return reopened;
}

}  // namespace dws
