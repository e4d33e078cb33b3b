// The number of waiting registrations is bounded, and the process that has most of them gives way:
// a flood cannot keep others out.
#include "common/service/sockets/handle_registry.h"

#include <sys/random.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "common/service/sockets/greediest_peer.h"

namespace dws {

std::optional<HandleRegistrationId> HandleRegistry::GivesWay(const UnixPeer& peer) const {
  std::vector<HandleRegistrationId> ids;  // waiting registrations, oldest first
  std::vector<UnixPeer> peers;
  std::optional<HandleRegistrationId> own;
  size_t own_count = 0;
  for (const auto& [id, entry] : entries_) {
    if (entry.claimed) continue;
    ids.push_back(id);
    peers.push_back(entry.expectation.peer.value_or(UnixPeer()));
    if (peers.back().uid != peer.uid || peers.back().pid != peer.pid) continue;
    ++own_count;
    own = own.value_or(id);
  }
  if (own_count >= limits::kHandleExpectationsPerProcessMax) return own;
  if (ids.size() < limits::kHandleExpectationsMax) return std::nullopt;
  return ids[*GreediestPeer(peers)];
}

void HandleRegistry::MakeRoom(const UnixPeer& peer) {
  std::optional<HandleRegistrationId> gives_way;
  {
    MutexLock lock(mutex_);
    gives_way = GivesWay(peer);
  }
  if (!gives_way.has_value()) return;
  End(*gives_way, ResourceExhaustedError(
                      "too many registrations waited for their memory, and this was the oldest of "
                      "the process with most of them; register again"));
}

Result<HandleSocket::Registration> HandleRegistry::Add(HandleSocket::Expectation expectation,
                                                       TimePoint now) {
  if (expectation.descriptor_count > limits::kDescriptorsMax) {
    return InvalidArgumentError("expected at most {} descriptors in a registration, found {}",
                                limits::kDescriptorsMax, expectation.descriptor_count);
  }
  HandleToken token;
  if (::getrandom(token.data(), token.size(), 0) != static_cast<ssize_t>(token.size())) {
    return ErrnoError(errno, "cannot generate a registration token");
  }
  MakeRoom(expectation.peer.value_or(UnixPeer()));
  MutexLock lock(mutex_);
  const HandleRegistrationId id(++last_id_);
  const TimePoint deadline = now + expectation.timeout;
  entries_.emplace(id, Entry{.expectation = std::move(expectation),
                             .token = token,
                             .deadline = deadline,
                             .claimed = false});
  waiting_.emplace(token, id);
  return HandleSocket::Registration{.id = id, .token = token};
}

Result<HandleRegistry::Claim> HandleRegistry::ClaimToken(const HandleToken& token, uid_t peer_uid) {
  MutexLock lock(mutex_);
  const auto found = waiting_.find(token);
  if (found == waiting_.end()) {
    return InvalidArgumentError(
        "the token is unknown, used or expired; register again to get a new one");
  }
  const HandleRegistrationId id = found->second;
  Entry& entry = entries_.at(id);
  const std::optional<UnixPeer>& registered = entry.expectation.peer;
  if (registered.has_value() && registered->uid != peer_uid) {
    return FailedPreconditionError("the token was given to uid {}, found uid {}", registered->uid,
                                   peer_uid);
  }
  entry.claimed = true;
  waiting_.erase(found);
  return Claim{.id = id,
               .descriptor_count = entry.expectation.descriptor_count,
               .lasts = entry.expectation.lasts};
}

bool HandleRegistry::Contains(HandleRegistrationId id) const {
  MutexLock lock(mutex_);
  return entries_.contains(id);
}

Status HandleRegistry::Deliver(HandleRegistrationId id, std::vector<UniqueFd> descriptors,
                               UniqueFd connection) {
  std::function<Status(std::vector<UniqueFd>, UniqueFd)> deliver;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return CancelledError("the registration was cancelled");
    deliver = found->second.expectation.on_descriptors;
  }
  return deliver(std::move(descriptors), std::move(connection));
}

void HandleRegistry::Overdue(HandleRegistrationId id) const {
  std::function<void()> overdue;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    if (found != entries_.end()) overdue = found->second.expectation.on_overdue;
  }
  if (overdue) overdue();
}

void HandleRegistry::End(HandleRegistrationId id, const Status& why) {
  Entry ended;
  {
    MutexLock lock(mutex_);
    const auto found = entries_.find(id);
    if (found == entries_.end()) return;
    ended = std::move(found->second);
    entries_.erase(found);
    if (!ended.claimed) waiting_.erase(ended.token);
  }
  if (ended.expectation.on_hangup) ended.expectation.on_hangup(why);
}

void HandleRegistry::Drop(HandleRegistrationId id) {
  Entry dropped;  // destroyed outside the lock, because its callbacks may own any object
  MutexLock lock(mutex_);
  const auto found = entries_.find(id);
  if (found == entries_.end()) return;
  if (!found->second.claimed) waiting_.erase(found->second.token);
  dropped = std::move(found->second);
  entries_.erase(found);
}

void HandleRegistry::EndExpired(TimePoint now) {
  std::vector<HandleRegistrationId> expired;
  {
    MutexLock lock(mutex_);
    for (const auto& [token, id] : waiting_) {
      if (entries_.at(id).deadline <= now) expired.push_back(id);
    }
  }
  for (const HandleRegistrationId id : expired) {
    End(id, DeadlineExceededError("no client sent the memory regions in time"));
  }
}

std::optional<TimePoint> HandleRegistry::NextDeadline() const {
  MutexLock lock(mutex_);
  std::optional<TimePoint> next;
  for (const auto& [token, id] : waiting_) {
    const TimePoint deadline = entries_.at(id).deadline;
    next = std::min(next.value_or(deadline), deadline);
  }
  return next;
}

}  // namespace dws
