// The ranges from `first_` up to `begun_` are held, or on their way. A reader that asks for a range
// has left those before it behind, which makes room for others.
#include "common/transport/shared_fs/remote_file.h"

#include <algorithm>
#include <cstring>
#include <optional>
#include <utility>

namespace dws::shared {

// Tasks of the executor own it, so that its file may go while they run.
class RemoteFile::Ahead : public std::enable_shared_from_this<RemoteFile::Ahead> {
 public:
  Ahead(std::vector<FileRange> ranges, size_t at_once, Fetch fetch, Executor& executor)
      : ranges_(std::move(ranges)),
        at_once_(at_once),
        fetch_(std::move(fetch)),
        executor_(executor),
        came_(ranges_.size()) {}

  void Start() {
    MutexLock lock(mutex_);
    Begin();
  }
  // Nothing will be asked for.
  void End() {
    MutexLock lock(mutex_);
    Leave(ranges_.size());
  }
  // Copies bytes that are inside one of the ranges ahead, and waits for them. False: they are not,
  // and nothing was copied. Errors as `fetch`: the range is left behind.
  Result<bool> Take(uint64_t offset, MutableByteSpan bytes);

 private:
  void Begin() REQUIRES(mutex_);
  void Fetched(size_t number);
  // Leaves behind what is before range `to`.
  void Leave(size_t to) REQUIRES(mutex_) {
    for (; first_ < to; ++first_) came_[first_].reset();
    begun_ = std::max(begun_, first_);
    changed_.NotifyAll();
  }

  const std::vector<FileRange> ranges_;
  const size_t at_once_;
  const Fetch fetch_;
  Executor& executor_;
  Mutex mutex_;
  CondVar changed_;
  size_t first_ GUARDED_BY(mutex_) = 0;
  size_t begun_ GUARDED_BY(mutex_) = 0;
  std::vector<std::optional<Result<std::string>>> came_ GUARDED_BY(mutex_);  // by range
};

void RemoteFile::Ahead::Begin() {
  while (begun_ < ranges_.size() && begun_ - first_ < at_once_) {
    const size_t number = begun_;
    // If the executor is busy, the reader asks for the range itself.
    if (!executor_.Post([self = shared_from_this(), number] { self->Fetched(number); })) return;
    ++begun_;
  }
}

void RemoteFile::Ahead::Fetched(size_t number) {
  {
    MutexLock lock(mutex_);
    if (number < first_) return;
  }
  Result<std::string> bytes = fetch_(ranges_[number]);
  MutexLock lock(mutex_);
  if (number < first_) return;
  came_[number] = std::move(bytes);
  changed_.NotifyAll();
}

Result<bool> RemoteFile::Ahead::Take(uint64_t offset, MutableByteSpan bytes) {
  const auto after = std::ranges::upper_bound(ranges_, offset, {}, &FileRange::offset);
  if (after == ranges_.begin()) return false;
  const auto number = static_cast<size_t>(after - ranges_.begin()) - 1;
  const FileRange& range = ranges_[number];
  if (offset > range.end() || bytes.size() > range.end() - offset) return false;
  MutexLock lock(mutex_);
  if (number >= first_) Leave(number);
  Begin();
  while (number >= first_ && number < begun_ && !came_[number].has_value()) changed_.Wait(mutex_);
  if (number < first_ || number >= begun_) return false;
  const Status failed = came_[number]->status();
  if (failed.ok()) {
    std::memcpy(bytes.data(), (*came_[number])->data() + (offset - range.offset), bytes.size());
  }
  if (!failed.ok() || offset + bytes.size() == range.end()) {
    Leave(number + 1);
    Begin();
  }
  DWS_RETURN_IF_ERROR(failed);
  return true;
}

RemoteFile::RemoteFile(Options options, Fetch fetch, Executor& executor)
    : options_(options), fetch_(std::move(fetch)), executor_(executor) {}

RemoteFile::~RemoteFile() {
  MutexLock lock(mutex_);
  if (ahead_ != nullptr) ahead_->End();
}

Result<size_t> RemoteFile::ReadAt(uint64_t offset, MutableByteSpan bytes) {
  if (offset >= options_.size_bytes || bytes.empty()) return 0;
  bytes = bytes.first(std::min<uint64_t>(bytes.size(), options_.size_bytes - offset));
  std::shared_ptr<Ahead> ahead;
  {
    MutexLock lock(mutex_);
    ahead = ahead_;
  }
  if (ahead != nullptr) {
    DWS_ASSIGN_OR_RETURN(const bool taken, ahead->Take(offset, bytes));
    if (taken) return bytes.size();
  }
  for (uint64_t read = 0; read < bytes.size();) {
    const uint64_t size = std::min(bytes.size() - read, options_.request_bytes_max);
    DWS_ASSIGN_OR_RETURN(const std::string got,
                         fetch_({.offset = offset + read, .size_bytes = size}));
    std::memcpy(bytes.data() + read, got.data(), got.size());
    read += size;
  }
  return bytes.size();
}

uint64_t RemoteFile::WillRead(std::vector<FileRange> ranges, uint64_t bytes_max) {
  uint64_t largest = 1;
  for (const FileRange& range : ranges) largest = std::max(largest, range.size_bytes);
  const size_t at_once =
      std::min<uint64_t>({ranges.size(), options_.requests_max, bytes_max / largest});
  std::shared_ptr<Ahead> ahead;
  if (at_once >= 2 && largest <= options_.request_bytes_max) {
    ahead = std::make_shared<Ahead>(std::move(ranges), at_once, fetch_, executor_);
    ahead->Start();
  }
  const bool reads = ahead != nullptr;
  MutexLock lock(mutex_);
  if (ahead_ != nullptr) ahead_->End();
  ahead_ = std::move(ahead);
  return reads ? at_once * largest : 0;
}

}  // namespace dws::shared
