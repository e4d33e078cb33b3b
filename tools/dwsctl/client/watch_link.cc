#include "tools/dwsctl/client/watch_link.h"

#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

namespace dws::dwsctl {

using std::chrono::duration_cast;
using std::chrono::milliseconds;
using std::chrono::steady_clock;

Result<std::unique_ptr<WatchInbox>> WatchInbox::Create() {
  UniqueFd signal(eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!signal.valid()) return ErrnoError(errno, "eventfd");
  return std::unique_ptr<WatchInbox>(new WatchInbox(std::move(signal)));
}

// An eventfd signals new events, so that the reader can poll for them together with signals.
void WatchInbox::Push(WatchEvent event) {
  const MutexLock lock(mutex_);
  events_.push_back(std::move(event));
  if (events_.size() > kEventsMax) events_.pop_front();
  const uint64_t one = 1;
  [[maybe_unused]] const ssize_t written = write(signal_.get(), &one, sizeof(one));
}

std::deque<WatchEvent> WatchInbox::Take() {
  const MutexLock lock(mutex_);
  uint64_t count = 0;
  [[maybe_unused]] const ssize_t got = read(signal_.get(), &count, sizeof(count));
  return std::exchange(events_, {});
}

WatchLink::WatchLink(size_t daemon, AdminClient client, std::chrono::duration<double> interval,
                     milliseconds silence_max, WatchInbox& inbox)
    : daemon_(daemon),
      client_(std::move(client)),
      interval_(interval),
      silence_max_(silence_max),
      inbox_(inbox),
      heard_(steady_clock::now()),
      loop_([this] { return Watch(); }) {
  loop_.Start();
}

WatchLink::~WatchLink() {
  hangup_.HangUp();  // ends a call
  loop_.Stop();
}

void WatchLink::Heard() {
  const MutexLock lock(mutex_);
  heard_ = steady_clock::now();
}

milliseconds WatchLink::CheckSilence() {
  const MutexLock lock(mutex_);
  const auto left = duration_cast<milliseconds>(heard_ + silence_max_ - steady_clock::now());
  if (left.count() > 0) return left;
  heard_ = steady_clock::now();
  hangup_.EndCall();
  return silence_max_;
}

Duration WatchLink::Watch() {
  Heard();
  Status ended = client_.Watch(interval_.count(), hangup_, [&](const v1::StatusReply& status) {
    Heard();
    retry_ = kRetryMin;
    inbox_.Push({.daemon = daemon_, .what = status});
  });
  if (hangup_.hung_up()) return kRetryMax;
  if (absl::IsCancelled(ended)) {
    ended = DeadlineExceededError("{} sent nothing for {} ms", client_.target().text,
                                  silence_max_.count());
  }
  inbox_.Push({.daemon = daemon_, .what = ended});
  return std::exchange(retry_, std::min(retry_ * 2, kRetryMax));
}

}  // namespace dws::dwsctl
