#include "common/service/sockets/unix_listener.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cerrno>
#include <map>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/base/threads/mutex.h"

namespace dws {
namespace {

constexpr size_t kEventsPerWait = 64;

// Until the client sends something, `fd` is the connection. Then the connection goes to the server,
// and `fd` becomes a duplicate that reports its end: the server shuts a connection down before it
// closes it, and every duplicate sees the shutdown.
struct Connection {
  UniqueFd fd;
  bool handed_out = false;
  TimePoint deadline;  // for the client's first bytes
};

constexpr size_t kFirstBytesMax = 64;

// How many bytes the client has sent, up to kFirstBytesMax; nullopt when it hung up.
std::optional<size_t> BytesSaid(int fd) {
  std::array<char, kFirstBytesMax> bytes;
  const ssize_t size = ::recv(fd, bytes.data(), bytes.size(), MSG_PEEK | MSG_DONTWAIT);
  if (size > 0) return static_cast<size_t>(size);
  if (size < 0 && (errno == EAGAIN || errno == EINTR)) return 0;
  return std::nullopt;
}

}  // namespace

class UnixListener::Impl {
 public:
  Impl(Options options, UniqueFd epoll, UnixAcceptor acceptor, UniqueFd wake)
      : options_(std::move(options)),
        epoll_(std::move(epoll)),
        acceptor_(std::move(acceptor)),
        wake_(std::move(wake)),
        thread_([this] { ThreadMain(); }) {}
  ~Impl() { Stop(); }

  void StopAccepting();
  void Stop();
  size_t connection_count() const { return count_; }

 private:
  void ThreadMain();
  int WaitMs() const;
  void Accept();
  void React(int fd, Connection& connection);
  void HandOut(int fd, Connection& connection);
  void CloseSilent(TimePoint now);
  bool Watch(int fd, uint32_t events);

  const Options options_;
  const UniqueFd epoll_;
  UnixAcceptor acceptor_;  // used by the thread
  const UniqueFd wake_;
  const RealClock clock_;
  std::atomic<bool> stopping_{false};
  std::atomic<size_t> count_{0};
  // By descriptor; used by the thread, and by Stop after the thread has ended.
  std::map<int, Connection> connections_;
  Mutex join_mutex_;
  std::thread thread_ GUARDED_BY(join_mutex_);
};

bool UnixListener::Impl::Watch(int fd, uint32_t events) {
  epoll_event event = {.events = events, .data = {.fd = fd}};
  return ::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) == 0;
}

void UnixListener::Impl::ThreadMain() {
  std::array<epoll_event, kEventsPerWait> events;
  while (!stopping_) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), WaitMs());
    DWS_CHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count && !stopping_; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == acceptor_.fd()) {
        Accept();
      } else if (const auto found = connections_.find(fd); found != connections_.end()) {
        React(fd, found->second);
      }
    }
    const TimePoint now = clock_.Now();
    CloseSilent(now);
    acceptor_.Resume(now);
    count_ = connections_.size();
  }
}

int UnixListener::Impl::WaitMs() const {
  std::optional<TimePoint> next = acceptor_.paused_until();
  for (const auto& [fd, connection] : connections_) {
    if (!connection.handed_out)
      next = std::min(next.value_or(connection.deadline), connection.deadline);
  }
  if (!next.has_value()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - clock_.Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void UnixListener::Impl::Accept() {
  const TimePoint now = clock_.Now();
  std::optional<UnixConnection> accepted = acceptor_.Accept(now);
  if (!accepted.has_value()) return;
  Status admitted = options_.allowed.Check(accepted->peer);
  if (admitted.ok() && connections_.size() >= options_.connections_max) {
    admitted = ResourceExhaustedError("{} clients are connected already, the limit is {}",
                                      connections_.size(), options_.connections_max);
  }
  if (!admitted.ok()) {
    LogWarning("connection_refused", {{"path", options_.path},
                                      {"uid", accepted->peer.uid},
                                      {"pid", accepted->peer.pid},
                                      {"reason", Message(admitted)}});
    return;
  }
  const int fd = accepted->fd.get();
  // Edge-triggered: each new piece of the first bytes causes one event. A client that has sent only
  // some of them causes no further events until it sends more.
  if (!Watch(fd, EPOLLIN | EPOLLRDHUP | EPOLLET)) return;
  connections_.emplace(
      fd, Connection{.fd = std::move(accepted->fd), .deadline = now + options_.speak_timeout});
}

void UnixListener::Impl::React(int fd, Connection& connection) {
  const std::optional<size_t> said = connection.handed_out ? std::nullopt : BytesSaid(fd);
  if (!said.has_value()) {
    connections_.erase(fd);
  } else if (*said >= options_.first_bytes) {
    HandOut(fd, connection);
  }
}

void UnixListener::Impl::HandOut(int fd, Connection& connection) {
  UniqueFd watch(::fcntl(fd, F_DUPFD_CLOEXEC, 0));
  // epoll tracks the connection and not the descriptor's number, so a duplicate would keep the
  // entry alive. Remove it explicitly.
  ::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, fd, nullptr);
  UniqueFd out = std::move(connection.fd);
  connections_.erase(fd);
  if (!watch.valid() || !Watch(watch.get(), EPOLLRDHUP)) return;  // out of descriptors: closed
  const int number = watch.get();
  connections_.emplace(number, Connection{.fd = std::move(watch), .handed_out = true});
  options_.on_connection(std::move(out));
}

void UnixListener::Impl::CloseSilent(TimePoint now) {
  std::erase_if(connections_, [now](const auto& entry) {
    return !entry.second.handed_out && entry.second.deadline <= now;
  });
}

void UnixListener::Impl::StopAccepting() {
  stopping_ = true;
  const uint64_t one = 1;
  // Fails only when the counter is full; then a wake-up is pending anyway.
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
  MutexLock lock(join_mutex_);
  if (!thread_.joinable()) return;
  thread_.join();
  ::unlink(options_.path.c_str());
}

void UnixListener::Impl::Stop() {
  StopAccepting();
  MutexLock lock(join_mutex_);
  for (const auto& [fd, connection] : connections_) ::shutdown(fd, SHUT_RDWR);
  connections_.clear();
  count_ = 0;
}

Result<std::unique_ptr<UnixListener>> UnixListener::Listen(Options options) {
  DWS_CHECK(options.on_connection != nullptr);
  DWS_CHECK(options.first_bytes >= 1 && options.first_bytes <= kFirstBytesMax);
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) return ErrnoError(errno, "cannot make an epoll set");
  epoll_event event = {.events = EPOLLIN, .data = {.fd = wake.get()}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoError(errno, "cannot add to an epoll set");
  }
  DWS_ASSIGN_OR_RETURN(UnixAcceptor acceptor,
                       UnixAcceptor::Listen(options.path, SOCK_STREAM, epoll));
  return std::unique_ptr<UnixListener>(new UnixListener(std::make_unique<Impl>(
      std::move(options), std::move(epoll), std::move(acceptor), std::move(wake))));
}

UnixListener::UnixListener(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
UnixListener::~UnixListener() = default;
void UnixListener::StopAccepting() { impl_->StopAccepting(); }
void UnixListener::Stop() { impl_->Stop(); }
size_t UnixListener::connection_count() const { return impl_->connection_count(); }

}  // namespace dws
