// Objects that the senders of all ranks give each other, each one of the same name and number: what
// they know of their ranks and need of all ranks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/loop_thread.h"
#include "common/base/threads/mutex.h"
#include "common/model/weight_version.h"
#include "sender_daemon/on_demand/gather/owner_links.h"
#include "sender_daemon/on_demand/objects/object_store.h"

namespace dws {

// How the names of exchanged objects begin; no other objects' do.
inline constexpr std::string_view kExchangedName = "exchange/";

namespace limits {
// An object of one sender in an exchange. Its parts have about 40 bytes each.
inline constexpr uint64_t kExchangedBytesMax = uint64_t{64} << 20;
}  // namespace limits

// Lifecycle: `links` outlive it; after they are stopped Stop waits for its calls. Threads: safe
// from any; `take` is called without a lock, by a thread of gRPC's.
class ObjectExchange {
 public:
  using Bytes = std::vector<std::byte>;
  // The objects of all ranks; that of this rank is empty. An error: one of them is not yet what it
  // should be, all are fetched again after a while.
  using Take = std::function<Status(const std::vector<Bytes>& objects)>;

  // `epoch`: above that of every earlier sender of the rank.
  ObjectExchange(std::string job_id, TrainerRank self, uint64_t epoch, OwnerLinks& links);
  ~ObjectExchange() { Stop(); }
  void Stop();

  uint32_t ranks() const { return links_.size(); }
  // Objects that were put before no longer count, and nothing more is taken.
  void BeginAgain();
  // Gives `bytes` to the other ranks, in the place of an object of the name with a lower number,
  // and fetches theirs with this number until `take` accepts them; null: only gives. The name
  // begins with kExchangedName (CHECK). Takes the place of an exchange of that name.
  // RESOURCE_EXHAUSTED: the object is too large. ABORTED: there is one with a higher number.
  // ALREADY_EXISTS: other bytes were put as this number.
  Status Begin(const RankObjectKey& key, Bytes bytes, Take take);
  // Nothing more is taken or given in the exchange of this name.
  void End(const std::string& name);
  // What the exchange of this name waits for: names the rank; OK: for nothing.
  Status Awaited(const std::string& name) const;

  ObjectStore& store() { return store_; }

 private:
  class Call;
  struct Fetched {
    uint64_t process = 0;
    uint64_t number = 0;
    Bytes bytes;
  };
  struct Part {  // of a round: one rank's
    bool asked = false;
    uint64_t process = 0;  // that has answered last
    TimePoint again_at = {};
    Status unreachable;  // why it cannot be asked
    Status reason;       // why the last answer was not taken
    std::optional<Bytes> object = {};
  };
  struct Round {
    RankObjectKey key;
    Take take;
    std::vector<Part> parts;  // by rank
    TimePoint began = {};
    bool told = false;  // that it waits long
  };
  using RoundPtr = std::shared_ptr<Round>;

  // Starts the calls that are due.
  Duration Ask();
  Status AwaitedIn(const Round& round) const REQUIRES(mutex_);
  void OnFetched(const RoundPtr& round, uint32_t rank, const Status& status, Fetched fetched);
  bool IsCurrent(const RoundPtr& round) const REQUIRES(mutex_);

  const std::string job_id_;
  const TrainerRank self_;
  OwnerLinks& links_;
  ObjectStore store_;
  RealClock clock_;
  mutable Mutex mutex_;
  CondVar ended_;  // a call has
  uint64_t process_ GUARDED_BY(mutex_);
  bool stopping_ GUARDED_BY(mutex_) = false;
  size_t calls_ GUARDED_BY(mutex_) = 0;
  std::map<std::string, RoundPtr> rounds_ GUARDED_BY(mutex_);  // by name; parts: of current ones
  LoopThread asks_;
};

}  // namespace dws
