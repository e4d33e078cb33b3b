// The registrations of a handle socket: which user may use which token, and which callback reports
// the end. Part of handle_socket; does not use sockets itself.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <vector>

#include "common/base/clock.h"
#include "common/base/status.h"
#include "common/base/threads/mutex.h"
#include "common/service/sockets/handle_socket.h"

namespace dws {

// A registration is first *waiting* (its token is valid), then *claimed* by one connection, then
// removed.
// Threads: safe from any. Calls no callback under its lock.
class HandleRegistry {
 public:
  struct Claim {
    HandleRegistrationId id;
    size_t descriptor_count = 0;
    std::optional<std::chrono::nanoseconds> lasts = std::nullopt;
  };

  // May end another waiting registration to make room, and then calls the on_hangup of that one.
  Result<HandleSocket::Registration> Add(HandleSocket::Expectation expectation, TimePoint now);
  // Invalidates `token` and claims its registration. INVALID_ARGUMENT: the token is unknown, used
  // or expired. FAILED_PRECONDITION: it belongs to another user; it then stays valid.
  Result<Claim> ClaimToken(const HandleToken& token, uid_t peer_uid);
  bool Contains(HandleRegistrationId id) const;
  // Runs on_descriptors if the registration still exists.
  Status Deliver(HandleRegistrationId id, std::vector<UniqueFd> descriptors, UniqueFd connection);
  // Calls on_overdue if the registration still exists.
  void Overdue(HandleRegistrationId id) const;
  // Removes the registration and calls on_hangup, if it still exists.
  void End(HandleRegistrationId id, const Status& why);
  // Removes the registration without calling anything.
  void Drop(HandleRegistrationId id);
  // Ends the registrations that no connection claimed in time.
  void EndExpired(TimePoint now);
  // When EndExpired must be called next.
  std::optional<TimePoint> NextDeadline() const;

 private:
  struct Entry {
    HandleSocket::Expectation expectation;
    HandleToken token = {};
    TimePoint deadline;
    bool claimed = false;
  };

  // The registration to end before another one of `peer` may wait; nullopt: there is room.
  std::optional<HandleRegistrationId> GivesWay(const UnixPeer& peer) const REQUIRES(mutex_);
  void MakeRoom(const UnixPeer& peer);

  mutable Mutex mutex_;
  std::map<HandleRegistrationId, Entry> entries_ GUARDED_BY(mutex_);
  std::map<HandleToken, HandleRegistrationId> waiting_ GUARDED_BY(mutex_);
  uint64_t last_id_ GUARDED_BY(mutex_) = 0;
};

}  // namespace dws
