// The objects that a rank's process has put at its sender, and who waits for them. No I/O.
#pragma once

#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/digest/digest.h"
#include "common/model/weight_version.h"

namespace dws {

namespace limits {
inline constexpr size_t kObjectNameBytesMax = 64;
inline constexpr size_t kObjectsMax = 4096;        // of a rank
inline constexpr size_t kObjectWaitersMax = 4096;  // calls that wait for objects of a rank
inline constexpr size_t kObjectFetchesMax = 1024;  // of a rank's process, at the same time
inline constexpr size_t kObjectChunkBytes = size_t{1} << 20;
inline constexpr uint64_t kObjectBytesDefault = uint64_t{4} << 30;
}  // namespace limits

// Names an object of a rank.
struct RankObjectKey {
  uint64_t group = 0;
  std::string name;

  friend auto operator<=>(const RankObjectKey&, const RankObjectKey&) = default;
};

// "'sum' of group 7"
std::string ToString(const RankObjectKey& key);

// Immutable once it was put.
struct RankObject {
  std::vector<std::byte> bytes;
  Digest digest;
};
using RankObjectPtr = std::shared_ptr<const RankObject>;

// Lifecycle: Stop ends all waits. Threads: safe from any; `done` is called without the lock, once,
// perhaps before Fetch returns.
class ObjectStore {
 public:
  struct Options {
    TrainerRank rank;
    uint64_t bytes_max = limits::kObjectBytesDefault;  // of all objects, those on their way too
    uint64_t epoch = 0;  // processes are numbered from it; above every earlier sender's
  };
  struct Attached {
    uint64_t process = 0;
    uint64_t group = 0;
  };
  struct Answer {
    Status status;
    uint64_t group = 0;  // that the rank is in, if the status is ABORTED
    RankObjectPtr object;
  };
  using Done = std::function<void(const Answer& answer)>;
  struct Wanted {
    RankObjectKey key;
    uint64_t size_bytes_max = 0;
    bool patient = false;  // waits for a process, too
  };

  explicit ObjectStore(Options options) : options_(options), last_process_(options.epoch) {}

  // `process`: "pid 7 on host", for messages.
  Attached Attach(const std::string& process);
  // The process is gone, unless another one has taken its place.
  void Detach(uint64_t process);

  // Bytes that are about to come. Errors: those of ObjectService.Put. Each OK is followed by one
  // Put, or Release with the same size.
  Status Reserve(uint64_t process, const RankObjectKey& key, uint64_t size_bytes);
  void Release(uint64_t size_bytes);
  Status Put(uint64_t process, const RankObjectKey& key, RankObjectPtr object);
  // FAILED_PRECONDITION: another process has attached. INVALID_ARGUMENT: the group is not above the
  // last one.
  Status Advance(uint64_t process, uint64_t group, const std::vector<std::string>& kept,
                 const std::string& reason);

  // Returns a number for Forget; 0: `done` was called.
  uint64_t Fetch(const Wanted& wanted, Done done);
  // `done` will not be called, unless a call of it has begun.
  void Forget(uint64_t waiter);
  void Stop();

  uint64_t bytes_max() const { return options_.bytes_max; }

 private:
  struct Waiter {
    Wanted wanted;
    Done done;
  };
  Status CheckProcess(uint64_t process) const REQUIRES(mutex_);
  Status CheckKey(uint64_t process, const RankObjectKey& key) const REQUIRES(mutex_);
  // True: the answer is known.
  bool Answered(const Wanted& wanted, Answer& answer) const REQUIRES(mutex_);
  // Answers those whose answer is known. Takes the lock.
  void Tell();

  const Options options_;
  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t last_process_ GUARDED_BY(mutex_);
  uint64_t attached_ GUARDED_BY(mutex_) = 0;  // 0: no process
  std::string process_ GUARDED_BY(mutex_);    // the last one
  uint64_t group_ GUARDED_BY(mutex_) = 0;
  std::string reason_ GUARDED_BY(mutex_);  // why the rank has gone on to it
  std::map<RankObjectKey, RankObjectPtr> objects_ GUARDED_BY(mutex_);
  uint64_t bytes_ GUARDED_BY(mutex_) = 0;
  uint64_t last_waiter_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Waiter> waiters_ GUARDED_BY(mutex_);
};

}  // namespace dws
