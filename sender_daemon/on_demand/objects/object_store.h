// The objects that a rank's process has put at its sender, and who waits for them. No I/O.
#pragma once

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/model/digest/digest.h"
#include "common/model/weight_version.h"
#include "common/train_state/train_limits.h"

namespace dws {

namespace limits {
inline constexpr size_t kObjectNameBytesMax = 64;
inline constexpr size_t kObjectReasonBytesMax = 1024;
inline constexpr size_t kObjectsMax = 4096;        // of a rank
inline constexpr size_t kObjectWaitersMax = 4096;  // calls that wait for objects of a rank
inline constexpr size_t kObjectChunkBytes = size_t{1} << 20;
}  // namespace limits

// Names an object of a rank's process.
struct RankObjectKey {
  std::string name;
  uint64_t number = 0;
};

// "'sum' number 7"
std::string ToString(const RankObjectKey& key);

// Bytes that count as held while it exists. It may outlive the store.
class ObjectRoom {
 public:
  ObjectRoom(std::shared_ptr<std::atomic<uint64_t>> held, uint64_t size_bytes)
      : held_(std::move(held)), size_bytes_(size_bytes) {}
  ~ObjectRoom() { *held_ -= size_bytes_; }
  ObjectRoom(const ObjectRoom&) = delete;
  ObjectRoom& operator=(const ObjectRoom&) = delete;

 private:
  const std::shared_ptr<std::atomic<uint64_t>> held_;
  const uint64_t size_bytes_;
};

// Immutable once it was put.
struct RankObject {
  uint64_t process = 0;
  uint64_t number = 0;
  uint64_t rounds = 0;  // see PutObjectChunk
  TimePoint put_at = {};
  std::vector<std::byte> bytes;
  Digest digest;
  std::unique_ptr<const ObjectRoom> room;  // of the bytes
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
  struct Answer {
    Status status;
    RankObjectPtr object = nullptr;
  };
  using Done = std::function<void(const Answer& answer)>;
  // See FetchObjectRequest.
  struct Wanted {
    uint64_t process = 0;
    RankObjectKey key;
    bool newer = false;
    uint64_t size_bytes_max = 0;
  };

  // What its process has put last.
  struct LastPut {
    RankObjectKey key;
    uint64_t rounds = 0;
    TimePoint at;
  };
  struct Counts {
    bool attached = false;  // a process
    uint64_t objects = 0;
    uint64_t held_bytes = 0;           // also of those on their way
    uint64_t waits = 0;                // calls for objects that are not there
    std::optional<LastPut> last = {};  // of the process that has attached last
  };

  explicit ObjectStore(Options options) : options_(options), last_process_(options.epoch) {}

  // Returns the number of the process, which takes the place of the one before. `process`: "pid 7",
  // for messages.
  uint64_t Attach(const std::string& process);
  // The process is gone, unless another one has taken its place.
  void Detach(uint64_t process);

  // Bytes that are about to come. `over_because`: see PutObjectChunk; it is done at once. Errors:
  // those of ObjectService.Put.
  Result<std::unique_ptr<const ObjectRoom>> Reserve(uint64_t process, const RankObjectKey& key,
                                                    uint64_t size_bytes,
                                                    const std::optional<std::string>& over_because);
  // `object` has the number of its process, and its room.
  Status Put(const std::string& name, RankObjectPtr object);
  // The process puts no more objects of that name; who waits for one goes on waiting.
  void Remove(uint64_t process, const std::string& name);

  // Returns a number for Forget; 0: `done` was called.
  uint64_t Fetch(const Wanted& wanted, Done done);
  // True: `done` will not be called. False: a call of it has begun.
  bool Forget(uint64_t waiter);
  void Stop();

  Counts counts() const;
  uint64_t bytes_max() const { return options_.bytes_max; }
  TrainerRank rank() const { return options_.rank; }

 private:
  struct Waiter {
    Wanted wanted;
    Done done;
  };
  Status CheckKey(uint64_t process, const RankObjectKey& key) const REQUIRES(mutex_);
  Status CheckRoom(const RankObjectKey& key, uint64_t size_bytes) const REQUIRES(mutex_);
  // Nullopt: the answer is not known yet.
  std::optional<Answer> AnswerTo(const Wanted& wanted) const REQUIRES(mutex_);
  // Answers those whose answer is known. Takes the lock.
  void Tell();

  const Options options_;
  const std::shared_ptr<std::atomic<uint64_t>> held_bytes_ =
      std::make_shared<std::atomic<uint64_t>>(0);
  mutable Mutex mutex_;
  bool stopping_ GUARDED_BY(mutex_) = false;
  uint64_t last_process_ GUARDED_BY(mutex_);
  uint64_t attached_ GUARDED_BY(mutex_) = 0;                         // 0: no process
  std::string process_ GUARDED_BY(mutex_);                           // the last one
  uint64_t first_ GUARDED_BY(mutex_) = 0;                            // lower numbers are over
  std::string reason_ GUARDED_BY(mutex_);                            // why they are
  std::map<std::string, RankObjectPtr> objects_ GUARDED_BY(mutex_);  // by name
  std::optional<LastPut> last_put_ GUARDED_BY(mutex_);
  uint64_t last_waiter_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Waiter> waiters_ GUARDED_BY(mutex_);
};

}  // namespace dws
