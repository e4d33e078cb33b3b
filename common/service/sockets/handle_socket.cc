#include "common/service/sockets/handle_socket.h"

#include <fcntl.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <map>
#include <thread>
#include <utility>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log/log.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/service/sockets/greediest_peer.h"
#include "common/service/sockets/handle_connection.h"
#include "common/service/sockets/handle_registry.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {
namespace {

constexpr size_t kEventsPerWait = 16;

using Stage = HandleConnection::Stage;

}  // namespace

// One thread owns the connections. All state that other threads use is in the registry. Drop
// removes a registration there and wakes the thread, which closes connections without a
// registration.
class HandleSocket::Impl {
 public:
  Impl(Options options, UniqueFd epoll, UnixAcceptor acceptor, UniqueFd wake);
  ~Impl();

  Result<Registration> Expect(Expectation expectation);
  void Drop(HandleRegistrationId id);
  const std::string& path() const { return options_.path; }

 private:
  void ThreadMain();
  int WaitMs() const;
  void Wake();

  void Accept();
  // The connection at `stage` that gives way to another client (greediest_peer.h).
  HandleConnection* GivesWay(Stage stage);
  void MakeRoom();
  size_t InUse() const;
  Status Admit(const UnixPeer& peer) const;
  void Read(HandleConnection& connection);
  void Refuse(HandleConnection& connection, const Status& why);
  void HangUp(HandleConnection& connection, const Status& why);
  void Forget(const HandleConnection& connection) const;
  void CloseExpired(TimePoint now);
  void CloseDropped();

  const Options options_;
  const UniqueFd epoll_;
  UnixAcceptor acceptor_;  // used by the thread
  const UniqueFd wake_;
  const RealClock clock_;
  HandleRegistry registry_;
  std::atomic<bool> stopping_{false};
  std::map<int, HandleConnection> connections_;  // by descriptor; used by the thread
  std::thread thread_;
};

HandleSocket::Impl::Impl(Options options, UniqueFd epoll, UnixAcceptor acceptor, UniqueFd wake)
    : options_(std::move(options)),
      epoll_(std::move(epoll)),
      acceptor_(std::move(acceptor)),
      wake_(std::move(wake)),
      thread_([this] { ThreadMain(); }) {}

HandleSocket::Impl::~Impl() {
  stopping_ = true;
  Wake();
  thread_.join();
  ::unlink(options_.path.c_str());
}

Result<HandleSocket::Registration> HandleSocket::Impl::Expect(Expectation expectation) {
  DWS_CHECK(expectation.on_descriptors != nullptr);
  DWS_ASSIGN_OR_RETURN(const Registration registration,
                       registry_.Add(std::move(expectation), clock_.Now()));
  Wake();  // the thread may have to wake earlier, for the new deadline
  return registration;
}

void HandleSocket::Impl::Drop(HandleRegistrationId id) {
  registry_.Drop(id);
  Wake();
}

void HandleSocket::Impl::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full; then a wake-up is pending anyway.
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

int HandleSocket::Impl::WaitMs() const {
  std::optional<TimePoint> next = registry_.NextDeadline();
  const auto consider = [&next](TimePoint time) { next = std::min(next.value_or(time), time); };
  for (const auto& [fd, connection] : connections_) {
    if (connection.deadline() != TimePoint::max()) consider(connection.deadline());
  }
  if (acceptor_.paused_until().has_value()) consider(*acceptor_.paused_until());
  if (!next.has_value()) return -1;
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(*next - clock_.Now()).count();
  return static_cast<int>(std::clamp<int64_t>(left, 0, 60'000));
}

void HandleSocket::Impl::ThreadMain() {
  std::array<epoll_event, kEventsPerWait> events;
  while (!stopping_) {
    const int count =
        ::epoll_wait(epoll_.get(), events.data(), static_cast<int>(events.size()), WaitMs());
    DWS_CHECK(count >= 0 || errno == EINTR);
    for (int i = 0; i < count; ++i) {
      const int fd = events[static_cast<size_t>(i)].data.fd;
      if (fd == acceptor_.fd()) {
        Accept();
      } else if (fd == wake_.get()) {
        uint64_t ignored;
        static_cast<void>(::read(wake_.get(), &ignored, sizeof(ignored)) == sizeof(ignored));
      } else if (const auto found = connections_.find(fd); found != connections_.end()) {
        Read(found->second);
      }
    }
    CloseDropped();
    const TimePoint now = clock_.Now();
    CloseExpired(now);
    registry_.EndExpired(now);
    acceptor_.Resume(now);
  }
  connections_.clear();
}

void HandleSocket::Impl::Accept() {
  const TimePoint now = clock_.Now();
  std::optional<UnixConnection> accepted = acceptor_.Accept(now);
  if (!accepted.has_value()) return;
  MakeRoom();
  // Refused connections stay open for a while, so they may take as many places again as the other
  // connections.
  if (connections_.size() >= 2 * options_.connections_max) return;
  const int fd = accepted->fd.get();
  epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return;
  HandleConnection connection(*std::move(accepted), now + options_.finish_timeout);
  if (const Status admitted = Admit(connection.peer()); !admitted.ok()) {
    Refuse(connection, admitted);
  }
  connections_.emplace(fd, std::move(connection));
}

size_t HandleSocket::Impl::InUse() const {
  return static_cast<size_t>(
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& entry) { return entry.second.stage() != Stage::kRefused; }));
}

HandleConnection* HandleSocket::Impl::GivesWay(Stage stage) {
  std::vector<HandleConnection*> there;
  for (auto& [fd, connection] : connections_) {
    if (connection.stage() == stage) there.push_back(&connection);
  }
  // All have the same time to finish, so the one with the first deadline is the oldest.
  std::sort(there.begin(), there.end(),
            [](const auto* a, const auto* b) { return a->deadline() < b->deadline(); });
  std::vector<UnixPeer> peers;
  for (const HandleConnection* connection : there) peers.push_back(connection->peer());
  const std::optional<size_t> index = GreediestPeer(peers);
  return index.has_value() ? there[*index] : nullptr;
}

void HandleSocket::Impl::MakeRoom() {
  const Status why = ResourceExhaustedError(
      "{} clients are connected, the limit, and this was the oldest that has not finished of the "
      "process with most of them; register again",
      options_.connections_max);
  if (InUse() >= options_.connections_max) {
    if (HandleConnection* unfinished = GivesWay(Stage::kReceiving)) Refuse(*unfinished, why);
  }
  if (connections_.size() >= 2 * options_.connections_max) {
    if (HandleConnection* refused = GivesWay(Stage::kRefused)) HangUp(*refused, why);
  }
}

Status HandleSocket::Impl::Admit(const UnixPeer& peer) const {
  if (const size_t in_use = InUse(); in_use >= options_.connections_max) {
    return ResourceExhaustedError("{} clients are connected already, the limit is {}", in_use,
                                  options_.connections_max);
  }
  return options_.allowed.Check(peer);
}

void HandleSocket::Impl::Read(HandleConnection& connection) {
  Result<std::optional<DescriptorMessage>> received =
      ReceiveDescriptorMessage(connection.fd(), kHandlePayloadBytes);
  if (!received.ok()) {
    const bool alive = absl::IsInvalidArgument(received.status());
    return alive ? Refuse(connection, received.status()) : HangUp(connection, received.status());
  }
  if (!received->has_value() || connection.stage() == Stage::kRefused) return;
  const Status taken = connection.Take(**std::move(received), registry_);
  if (!taken.ok()) return Refuse(connection, taken);
  if (!connection.complete()) return;
  UniqueFd again(::fcntl(connection.fd().get(), F_DUPFD_CLOEXEC, 0));
  if (!again.valid()) return Refuse(connection, ErrnoError(errno, "cannot keep the connection"));
  const Status delivered =
      registry_.Deliver(*connection.registration(), connection.TakeDescriptors(), std::move(again));
  if (!delivered.ok()) return Refuse(connection, delivered);
  connection.Establish(clock_.Now());
}

// After any error the registration that the connection has claimed ends too.
void HandleSocket::Impl::Refuse(HandleConnection& connection, const Status& why) {
  if (connection.stage() == Stage::kRefused) return;
  LogWarning("handles_refused", {{"path", options_.path},
                                 {"uid", connection.peer().uid},
                                 {"pid", connection.peer().pid},
                                 {"reason", Message(why)}});
  const auto registration = connection.Refuse(why, clock_.Now() + options_.finish_timeout);
  if (registration.has_value()) registry_.End(*registration, why);
}

void HandleSocket::Impl::HangUp(HandleConnection& connection, const Status& why) {
  const std::optional<HandleRegistrationId> registration = connection.registration();
  Forget(connection);
  connections_.erase(connection.fd().get());
  if (registration.has_value()) registry_.End(*registration, why);
}

// Closing the descriptor is not enough: a duplicate of it (on_descriptors gets one) keeps the
// connection in the epoll set.
void HandleSocket::Impl::Forget(const HandleConnection& connection) const {
  DWS_CHECK(::epoll_ctl(epoll_.get(), EPOLL_CTL_DEL, connection.fd().get(), nullptr) == 0);
}

void HandleSocket::Impl::CloseExpired(TimePoint now) {
  std::vector<int> expired;
  for (auto& [fd, connection] : connections_) {
    if (connection.deadline() > now) continue;
    if (connection.stage() != Stage::kEstablished) {
      expired.push_back(fd);
    } else {
      connection.SetOverdueReported();
      if (connection.registration().has_value()) registry_.Overdue(*connection.registration());
    }
  }
  for (const int fd : expired) {
    HandleConnection& connection = connections_.at(fd);
    const Status late =
        DeadlineExceededError("{} of {} descriptors had arrived when the time was up",
                              connection.received(), connection.expected());
    Refuse(connection, late);
    HangUp(connection, late);
  }
}

void HandleSocket::Impl::CloseDropped() {
  std::erase_if(connections_, [this](const auto& entry) {
    const std::optional<HandleRegistrationId>& registration = entry.second.registration();
    const bool dropped = registration.has_value() && !registry_.Contains(*registration);
    if (dropped) Forget(entry.second);
    return dropped;
  });
}

Result<std::unique_ptr<HandleSocket>> HandleSocket::Listen(Options options) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) return ErrnoError(errno, "cannot make an epoll set");
  DWS_ASSIGN_OR_RETURN(UnixAcceptor acceptor,
                       UnixAcceptor::Listen(options.path, SOCK_SEQPACKET, epoll));
  epoll_event event = {.events = EPOLLIN, .data = {.fd = wake.get()}};
  if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, wake.get(), &event) != 0) {
    return ErrnoError(errno, "cannot add to an epoll set");
  }
  return std::unique_ptr<HandleSocket>(new HandleSocket(std::make_unique<Impl>(
      std::move(options), std::move(epoll), std::move(acceptor), std::move(wake))));
}

HandleSocket::HandleSocket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HandleSocket::~HandleSocket() = default;

Result<HandleSocket::Registration> HandleSocket::Expect(Expectation expectation) {
  return impl_->Expect(std::move(expectation));
}

void HandleSocket::Drop(HandleRegistrationId id) { impl_->Drop(id); }

const std::string& HandleSocket::path() const { return impl_->path(); }

}  // namespace dws
