// The registrations of a handle socket: who may come with which token, and whom to tell when it
// ends. Part of handle_socket; knows no sockets.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/mutex.h"
#include "common/base/status.h"
#include "common/service/sockets/handle_socket.h"

namespace dws {

// A registration is *waiting* (its token is good), then *claimed* by one connection, then gone.
// Threads: safe from any. Calls no callback under its lock.
class HandleRegistry {
 public:
  struct Claim {
    HandleRegistrationId id;
    size_t descriptor_count = 0;
  };

  // May end another that is waiting, whose on_hangup it calls.
  Result<HandleSocket::Registration> Add(HandleSocket::Expectation expectation, TimePoint now);
  // Uses up `token`. INVALID_ARGUMENT: unknown, used or expired; FAILED_PRECONDITION: of another
  // user (the token stays good).
  Result<Claim> ClaimToken(const HandleToken& token, uid_t peer_uid);
  bool Contains(HandleRegistrationId id) const;
  // Runs on_descriptors, if the registration is still there.
  Status Deliver(HandleRegistrationId id, std::vector<UniqueFd> descriptors, UniqueFd connection);
  // Removes it and calls on_hangup, if it is still there.
  void End(HandleRegistrationId id, const Status& why);
  // Removes it, calls nothing.
  void Drop(HandleRegistrationId id);
  // Ends what nobody claimed in time.
  void EndExpired(TimePoint now);
  // When the next EndExpired is due.
  std::optional<TimePoint> NextDeadline() const;

 private:
  struct Entry {
    HandleSocket::Expectation expectation;
    HandleToken token = {};
    TimePoint deadline;
    bool claimed = false;
  };

  // One that has to go before another of `peer` may wait.
  std::optional<HandleRegistrationId> GivesWay(const UnixPeer& peer) const REQUIRES(mutex_);
  void MakeRoom(const UnixPeer& peer);

  mutable Mutex mutex_;
  std::map<HandleRegistrationId, Entry> entries_ GUARDED_BY(mutex_);
  std::map<HandleToken, HandleRegistrationId> waiting_ GUARDED_BY(mutex_);
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
};

}  // namespace dws
