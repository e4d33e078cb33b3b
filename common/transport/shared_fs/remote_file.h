// A file that is far away: its ranges are asked for by requests, and ahead of the reader several at
// once, where one stream does not fill the link.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/base/bytes.h"
#include "common/base/file_system.h"
#include "common/base/status.h"
#include "common/base/threads/executor.h"
#include "common/base/threads/mutex.h"

namespace dws::shared {

// Requests to one place at a time, and those that may wait for a thread.
inline constexpr size_t kRequestsAtOnceMax = 8;
inline constexpr size_t kRequestsQueuedMax = 1024;

struct FileRange {
  uint64_t offset = 0;
  uint64_t size_bytes = 0;

  uint64_t end() const { return offset + size_bytes; }
  friend bool operator==(const FileRange&, const FileRange&) = default;
};

// Lifecycle: the destructor waits for nothing: what is being read ahead is dropped when it comes.
// Threads: safe from any.
class RemoteFile final : public ReadableFile {
 public:
  // Reads exactly this range of the file. Called from any thread; what it uses outlives the
  // executor.
  using Fetch = std::function<Result<std::string>(FileRange range)>;
  struct Options {
    uint64_t size_bytes = 0;
    uint64_t request_bytes_max = 0;
    size_t requests_max = kRequestsAtOnceMax;  // at once
  };

  // `executor`: reads ahead; outlives it.
  RemoteFile(Options options, Fetch fetch, Executor& executor);
  ~RemoteFile() override;

  Result<size_t> ReadAt(uint64_t offset, MutableByteSpan bytes) override;

  // From now on these ranges will be read, each once, in this order, whole or in parts: reads them
  // ahead, each by one request. `ranges`: ascending and apart. Returns the memory that this takes
  // from now on, at most `bytes_max`; 0: it does not hold two ranges, and nothing is read ahead.
  uint64_t WillRead(std::vector<FileRange> ranges, uint64_t bytes_max);

 private:
  class Ahead;

  const Options options_;
  const Fetch fetch_;
  Executor& executor_;
  Mutex mutex_;
  std::shared_ptr<Ahead> ahead_ GUARDED_BY(mutex_);  // null: nothing is read ahead
};

}  // namespace dws::shared
