// What senders send each other for the objects of their ranks, and whom this sender's rank waits
// for.
#pragma once

#include <atomic>
#include <cstdint>
#include <map>
#include <optional>

#include "common/base/clock.h"
#include "common/base/threads/mutex.h"
#include "common/model/weight_version.h"
#include "sender_daemon/on_demand/objects/object_store.h"

namespace dws {

// Bytes are those of whole messages, as they are given to gRPC. Threads: safe from any.
class ObjectTraffic {
 public:
  struct Waiting {
    TrainerRank rank;
    RankObjectKey key;
    bool newer = false;  // a later number will do, too
    TimePoint since;
  };

  void OnPut(uint64_t bytes) { put_bytes_ += bytes; }  // of the object
  void OnRefused() { ++refused_; }                     // a put
  void OnSent(uint64_t bytes) { sent_bytes_ += bytes; }
  void OnReceived(uint64_t bytes) { received_bytes_ += bytes; }

  // The rank of this sender waits for an object of another one. Returns what ends the wait; of more
  // than limits::kObjectWaitersMax waits some are not known.
  uint64_t BeginWait(Waiting waiting);
  void EndWait(uint64_t wait);

  uint64_t put_bytes() const { return put_bytes_; }
  uint64_t refused() const { return refused_; }
  uint64_t sent_bytes() const { return sent_bytes_; }
  uint64_t received_bytes() const { return received_bytes_; }
  // The wait that has lasted longest.
  std::optional<Waiting> longest() const;

 private:
  std::atomic<uint64_t> put_bytes_ = 0;
  std::atomic<uint64_t> refused_ = 0;
  std::atomic<uint64_t> sent_bytes_ = 0;
  std::atomic<uint64_t> received_bytes_ = 0;
  mutable Mutex mutex_;
  uint64_t last_wait_ GUARDED_BY(mutex_) = 0;
  std::map<uint64_t, Waiting> waits_ GUARDED_BY(mutex_);  // by number: the first is the oldest
};

}  // namespace dws
