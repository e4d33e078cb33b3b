#include "common/spool/spool.h"

#include <fcntl.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <cstring>

#include "common/base/check.h"
#include "common/base/failpoint.h"

namespace dws {
namespace {

// Memory reserved at first for a transfer of unknown size.
constexpr uint64_t kUnknownBytes = uint64_t{1} << 20;
constexpr uintptr_t kSmallPageBytes = 4096;
// Allocations of at least this size lie in huge pages.
constexpr uint64_t kPagesBytesMin = uint64_t{32} << 20;

// Maps the pages of shared memory that this process has not read yet; other memory is mapped
// already. A kernel that finds a page missing while it copies to a file discards what it has
// copied, often a megabyte, and begins again. Kernels before Linux 5.14 cannot do this mapping.
void MapAll(ByteSpan bytes) {
  const auto begin = reinterpret_cast<uintptr_t>(bytes.data());
  const uintptr_t page = begin / kSmallPageBytes * kSmallPageBytes;
  (void)::madvise(reinterpret_cast<void*>(page), begin + bytes.size() - page, MADV_POPULATE_READ);
}

}  // namespace

// While a vector grows it holds its bytes twice, so growth counts the old and the new memory.
// Append reserves once, if it can, to avoid growth.
uint64_t Spool::MemoryFor(uint64_t more) const {
  const uint64_t total = size_bytes_ + more;
  if (memory_.empty() || total <= memory_.capacity()) return total;
  return memory_.capacity() + std::max(total, 2 * memory_.capacity());
}

Status Spool::Append(ByteSpan bytes) {
  if (options_.wanted && !options_.wanted()) {
    return CancelledError("given up after {} bytes", size_bytes_);
  }
  DWS_CHECK(size_bytes_ <= options_.size_bytes_max && pages_ == nullptr);
  DWS_CHECK(on_disk() || memory_.size() == size_bytes_);
  if (bytes.size() > options_.size_bytes_max - size_bytes_) {
    return DataLossError("a sender sent more than the {} bytes it announced",
                         options_.size_bytes_max);
  }
  // If the expected size is over the cap, everything goes to the file from the start.
  const bool too_large = options_.size_bytes_expected > options_.memory_bytes_max;
  if (!on_disk() && (too_large || MemoryFor(bytes.size()) > options_.memory_bytes_max)) {
    DWS_RETURN_IF_ERROR(OpenFile());
    DWS_RETURN_IF_ERROR(WriteFile(memory_, 0));
    memory_ = {};
  }
  if (on_disk()) {
    DWS_RETURN_IF_ERROR(WriteFile(bytes, size_bytes_));
  } else {
    if (memory_.capacity() == 0) {
      const uint64_t about = options_.size_bytes_expected != 0
                                 ? options_.size_bytes_expected + options_.size_bytes_expected / 64
                                 : kUnknownBytes;
      const uint64_t reserved =
          std::min({about, options_.size_bytes_max, options_.memory_bytes_max});
      if (options_.spare != nullptr) options_.spare->MakeRoom(reserved);
      memory_.reserve(reserved);
    }
    memory_.insert(memory_.end(), bytes.begin(), bytes.end());
  }
  size_bytes_ += bytes.size();
  if (options_.progress != nullptr) options_.progress->done_bytes += bytes.size();
  DWS_KILLPOINT("receiver.fetch.after_bytes");
  return OkStatus();
}

// Whole huge pages where they matter, and where the cap has room for them.
uint64_t Spool::MemoryOf(uint64_t size, uint64_t memory_bytes_max) {
  if (size > memory_bytes_max) return 0;
  const uint64_t in_pages = CeilDiv(size, kHugePageBytes) * kHugePageBytes;
  return size >= kPagesBytesMin && in_pages <= memory_bytes_max ? in_pages : size;
}

Status Spool::Allocate(uint64_t size) {
  DWS_CHECK(size_bytes_ == 0 && memory_.empty() && pages_ == nullptr && !on_disk());
  if (size > options_.size_bytes_max) {
    return DataLossError("{} bytes are to be transferred, at most {} are supported", size,
                         options_.size_bytes_max);
  }
  size_bytes_ = size;
  const uint64_t memory = MemoryOf(size, options_.memory_bytes_max);
  if (memory < size) {
    DWS_RETURN_IF_ERROR(OpenFile());
    if (::ftruncate(file_.get(), static_cast<off_t>(size)) == 0) return OkStatus();
    return ErrnoError(errno, fmt::format("making room for {} bytes in {}", size, options_.folder));
  }
  if (size >= kPagesBytesMin && memory % kHugePageBytes == 0) {
    pages_ = options_.spare == nullptr ? AllocateOwnPages(size) : options_.spare->Allocate(size);
  } else {
    if (options_.spare != nullptr) options_.spare->MakeRoom(size);
    memory_.resize(size);
  }
  return OkStatus();
}

MutableByteSpan Spool::Room(uint64_t offset, uint64_t size, std::vector<std::byte>& buffer) {
  DWS_CHECK(offset <= size_bytes_ && size <= size_bytes_ - offset);
  if (!on_disk()) return {Memory() + offset, size};
  buffer.resize(size);
  return buffer;
}

Status Spool::CheckWanted() const {
  if (options_.wanted && !options_.wanted()) return CancelledError("given up");
  return OkStatus();
}

Status Spool::Fill(uint64_t offset, ByteSpan bytes) {
  DWS_CHECK(offset <= size_bytes_ && bytes.size() <= size_bytes_ - offset);
  DWS_RETURN_IF_ERROR(CheckWanted());
  if (on_disk()) return WriteFile(bytes, offset);
  if (!bytes.empty() && bytes.data() != Memory() + offset) {
    std::memcpy(Memory() + offset, bytes.data(), bytes.size());
  }
  return OkStatus();
}

Status Spool::OpenFile() {
  // Bytes that pass through a file also take memory, which no cap counts.
  if (options_.spare != nullptr) options_.spare->Clear();
  file_.reset(::open(options_.folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600));
  if (file_.valid()) return OkStatus();
  // Some file systems do not support O_TMPFILE.
  std::string path = options_.folder + "/spool-XXXXXX";
  file_.reset(::mkostemp(path.data(), O_CLOEXEC));
  if (!file_.valid()) {
    return ErrnoError(errno, fmt::format("creating a spool file in {}", options_.folder));
  }
  ::unlink(path.c_str());
  return OkStatus();
}

Status Spool::WriteFile(ByteSpan bytes, uint64_t offset) const {
  MapAll(bytes);
  while (!bytes.empty()) {
    const ssize_t written =
        ::pwrite(file_.get(), bytes.data(), bytes.size(), static_cast<off_t>(offset));
    if (written < 0 && errno == EINTR) continue;
    if (written < 0)
      return ErrnoError(errno, fmt::format("writing a spool file in {}", options_.folder));
    bytes = bytes.subspan(static_cast<size_t>(written));
    offset += static_cast<uint64_t>(written);
  }
  return OkStatus();
}

Result<ByteSpan> Spool::Read(uint64_t offset, uint64_t size, std::vector<std::byte>& buffer) const {
  if (offset > size_bytes_ || size > size_bytes_ - offset) {
    return DataLossError("bytes [{}, +{}) are outside a transfer of {} bytes", offset, size,
                         size_bytes_);
  }
  if (pages_ != nullptr) return ByteSpan(pages_.get() + offset, size);
  DWS_CHECK(on_disk() || memory_.size() == size_bytes_);
  if (!on_disk()) return ByteSpan(memory_).subspan(offset, size);
  buffer.resize(size);
  uint64_t done = 0;
  while (done < size) {
    const ssize_t got =
        ::pread(file_.get(), buffer.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0)
      return ErrnoError(errno, fmt::format("reading a spool file in {}", options_.folder));
    if (got == 0) return DataLossError("a spool file in {} ends early", options_.folder);
    done += static_cast<uint64_t>(got);
  }
  return ByteSpan(buffer);
}

}  // namespace dws
