#include "common/service/handle_socket.h"

#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <map>
#include <thread>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/base/log.h"
#include "common/service/descriptor_message.h"
#include "common/service/handle_registry.h"
#include "common/service/unix_socket.h"

namespace dws {
namespace {

constexpr size_t kPayloadBytes = std::tuple_size_v<HandleToken> + sizeof(uint32_t);
constexpr int kBacklog = 64;
constexpr size_t kEventsPerWait = 16;

struct Peer {
  uid_t uid = 0;
  pid_t pid = 0;
};

// Where a connection is: numbers as in the header's wire, plus the time after an error was
// answered.
enum class Stage {
  kReceiving,    // 1
  kEstablished,  // 3
  kRefused,      // answered with an error; see Refuse
};

struct Connection {
  UniqueFd fd;
  Peer peer;
  Stage stage = Stage::kReceiving;
  TimePoint deadline;  // of kReceiving and kRefused
  std::optional<HandleRegistrationId> registration;
  HandleToken token = {};  // of the registration
  size_t descriptor_count = 0;
  std::vector<UniqueFd> descriptors;
};

Result<UniqueFd> ListenAt(const std::string& path) {
  DWS_RETURN_IF_ERROR(ClearSocketPath(path, SOCK_SEQPACKET));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  if (!fd.valid()) return ErrnoError(errno, "cannot make the handle socket");
  if (::bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)) != 0) {
    return ErrnoError(errno, fmt::format("cannot bind the handle socket {}", path));
  }
  // The mode first: nobody can connect before listen.
  DWS_RETURN_IF_ERROR(RestrictSocket(path));
  if (::listen(fd.get(), kBacklog) != 0) {
    return ErrnoError(errno, fmt::format("cannot listen on the handle socket {}", path));
  }
  return fd;
}

void Answer(const Connection& connection, std::string_view text) {
  // A client that does not read, or is gone, shows by hanging up.
  static_cast<void>(
      ::send(connection.fd.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
}

}  // namespace

// One thread owns the connections; everything that other threads touch is in the registry. Drop
// removes a registration there and wakes the thread, which closes connections whose registration is
// gone.
class HandleSocket::Impl {
 public:
  Impl(Options options, UniqueFd listener, UniqueFd epoll, UniqueFd wake);
  ~Impl();

  Result<Registration> Expect(Expectation expectation);
  void Drop(HandleRegistrationId id);
  const std::string& path() const { return options_.path; }

 private:
  void ThreadMain();
  int WaitMs() const;
  void Wake();

  void Accept();
  Status Admit(Connection& connection) const;
  void Read(Connection& connection);
  Status Take(Connection& connection, DescriptorMessage message);
  void Refuse(Connection& connection, const Status& why);
  void HangUp(Connection& connection, const Status& why);
  void CloseExpired(TimePoint now);
  void CloseDropped();

  const Options options_;
  const UniqueFd listener_;
  const UniqueFd epoll_;
  const UniqueFd wake_;
  const RealClock clock_;
  HandleRegistry registry_;
  std::atomic<bool> stopping_{false};
  std::map<int, Connection> connections_;  // by descriptor; of the thread
  std::thread thread_;
};

HandleSocket::Impl::Impl(Options options, UniqueFd listener, UniqueFd epoll, UniqueFd wake)
    : options_(std::move(options)),
      listener_(std::move(listener)),
      epoll_(std::move(epoll)),
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
  Wake();  // its deadline may be the next one
  return registration;
}

void HandleSocket::Impl::Drop(HandleRegistrationId id) {
  registry_.Drop(id);
  Wake();
}

void HandleSocket::Impl::Wake() {
  const uint64_t one = 1;
  // Fails only when the counter is full: then the thread is woken already.
  static_cast<void>(::write(wake_.get(), &one, sizeof(one)) == sizeof(one));
}

int HandleSocket::Impl::WaitMs() const {
  std::optional<TimePoint> next = registry_.NextDeadline();
  for (const auto& [fd, connection] : connections_) {
    if (connection.stage == Stage::kEstablished) continue;
    next = std::min(next.value_or(connection.deadline), connection.deadline);
  }
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
      if (fd == listener_.get()) {
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
  }
  connections_.clear();
}

void HandleSocket::Impl::Accept() {
  Connection connection;
  connection.fd =
      UniqueFd(::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
  if (!connection.fd.valid()) {
    if (errno == EMFILE || errno == ENFILE) {
      LogError("handle_socket_full",
               {{"path", options_.path},
                {"reason", "no free descriptor for a new client; raise LimitNOFILE"}});
      // The client stays in the queue and would wake us at once, again and again.
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
    return;
  }
  // Refused ones linger beside the others, up to as many again.
  if (connections_.size() >= 2 * options_.connections_max) return;
  const Status admitted = Admit(connection);
  const int fd = connection.fd.get();
  epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
  if (::epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0) return;
  connection.deadline = clock_.Now() + options_.finish_timeout;
  if (!admitted.ok()) Refuse(connection, admitted);
  connections_.emplace(fd, std::move(connection));
}

Status HandleSocket::Impl::Admit(Connection& connection) const {
  ucred credentials = {};
  socklen_t size = sizeof(credentials);
  if (::getsockopt(connection.fd.get(), SOL_SOCKET, SO_PEERCRED, &credentials, &size) != 0) {
    return ErrnoError(errno, "cannot tell who connected");
  }
  connection.peer = {.uid = credentials.uid, .pid = credentials.pid};
  const auto in_use =
      std::count_if(connections_.begin(), connections_.end(),
                    [](const auto& entry) { return entry.second.stage != Stage::kRefused; });
  if (static_cast<size_t>(in_use) >= options_.connections_max) {
    return ResourceExhaustedError("{} clients are connected already, the limit is {}", in_use,
                                  options_.connections_max);
  }
  const auto& allowed = options_.allowed_uids;
  if (credentials.uid == 0 || credentials.uid == ::geteuid() ||
      std::find(allowed.begin(), allowed.end(), credentials.uid) != allowed.end()) {
    return OkStatus();
  }
  return FailedPreconditionError(
      "uid {} may not use this daemon: run as uid {}, or allow the uid in the daemon's "
      "configuration",
      credentials.uid, ::geteuid());
}

void HandleSocket::Impl::Read(Connection& connection) {
  Result<std::optional<DescriptorMessage>> received =
      ReceiveDescriptorMessage(connection.fd, kPayloadBytes);
  if (!received.ok()) {
    const bool alive = absl::IsInvalidArgument(received.status());
    return alive ? Refuse(connection, received.status()) : HangUp(connection, received.status());
  }
  if (!received->has_value() || connection.stage == Stage::kRefused) return;
  const Status taken = Take(connection, **std::move(received));
  if (!taken.ok()) return Refuse(connection, taken);
  if (connection.descriptors.size() < connection.descriptor_count) return;

  // 2. All are here.
  const Status delivered =
      registry_.Deliver(*connection.registration, std::exchange(connection.descriptors, {}));
  if (!delivered.ok()) return Refuse(connection, delivered);
  connection.stage = Stage::kEstablished;
  Answer(connection, "ok");
}

// 1. One message of descriptors. Any error ends the registration that the connection has claimed.
Status HandleSocket::Impl::Take(Connection& connection, DescriptorMessage message) {
  if (connection.stage == Stage::kEstablished) {
    return InvalidArgumentError("expected nothing more after \"ok\", found a message of {} bytes",
                                message.payload.size());
  }
  if (message.payload.size() != kPayloadBytes) {
    return InvalidArgumentError("expected messages of {} bytes (token, descriptor count), found {}",
                                kPayloadBytes, message.payload.size());
  }
  HandleToken token;
  std::memcpy(token.data(), message.payload.data(), token.size());
  const auto total = LoadLe<uint32_t>(message.payload.data() + token.size());
  if (!connection.registration.has_value()) {
    DWS_ASSIGN_OR_RETURN(const HandleRegistry::Claim claim,
                         registry_.ClaimToken(token, connection.peer.uid));
    connection.registration = claim.id;
    connection.token = token;
    connection.descriptor_count = claim.descriptor_count;
  } else if (token != connection.token) {
    return InvalidArgumentError("the token changed within one connection");
  }
  if (total != connection.descriptor_count) {
    return InvalidArgumentError(
        "expected {} descriptors, as registered, found an announcement of {}",
        connection.descriptor_count, total);
  }
  const size_t missing = connection.descriptor_count - connection.descriptors.size();
  if (message.descriptors.empty() || message.descriptors.size() > missing) {
    return InvalidArgumentError("expected 1 to {} more descriptors, found {} in one message",
                                missing, message.descriptors.size());
  }
  std::move(message.descriptors.begin(), message.descriptors.end(),
            std::back_inserter(connection.descriptors));
  return OkStatus();
}

// Answers, ends the registration, and leaves the connection open for a while to discard what the
// client still sends: closing with unread messages would make the client lose the answer.
void HandleSocket::Impl::Refuse(Connection& connection, const Status& why) {
  if (connection.stage == Stage::kRefused) return;
  LogWarning("handles_refused", {{"path", options_.path},
                                 {"uid", connection.peer.uid},
                                 {"pid", connection.peer.pid},
                                 {"reason", Message(why)}});
  Answer(connection, fmt::format("error: {}", Message(why)).substr(0, limits::kErrorBytesMax));
  connection.stage = Stage::kRefused;
  connection.deadline = clock_.Now() + options_.finish_timeout;
  connection.descriptors.clear();
  if (const auto registration = std::exchange(connection.registration, std::nullopt)) {
    registry_.End(*registration, why);
  }
}

void HandleSocket::Impl::HangUp(Connection& connection, const Status& why) {
  const std::optional<HandleRegistrationId> registration = connection.registration;
  connections_.erase(connection.fd.get());  // also takes it out of the epoll set
  if (registration.has_value()) registry_.End(*registration, why);
}

void HandleSocket::Impl::CloseExpired(TimePoint now) {
  std::vector<int> expired;
  for (const auto& [fd, connection] : connections_) {
    if (connection.stage != Stage::kEstablished && connection.deadline <= now) {
      expired.push_back(fd);
    }
  }
  for (const int fd : expired) {
    Connection& connection = connections_.at(fd);
    const Status late =
        DeadlineExceededError("{} of {} descriptors had come when the time was up",
                              connection.descriptors.size(), connection.descriptor_count);
    Refuse(connection, late);
    HangUp(connection, late);
  }
}

void HandleSocket::Impl::CloseDropped() {
  std::erase_if(connections_, [this](const auto& entry) {
    const std::optional<HandleRegistrationId>& registration = entry.second.registration;
    return registration.has_value() && !registry_.Contains(*registration);
  });
}

Result<std::unique_ptr<HandleSocket>> HandleSocket::Listen(Options options) {
  UniqueFd epoll(::epoll_create1(EPOLL_CLOEXEC));
  UniqueFd wake(::eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!epoll.valid() || !wake.valid()) return ErrnoError(errno, "cannot make an epoll set");
  DWS_ASSIGN_OR_RETURN(UniqueFd listener, ListenAt(options.path));
  for (const int fd : {listener.get(), wake.get()}) {
    epoll_event event = {.events = EPOLLIN, .data = {.fd = fd}};
    if (::epoll_ctl(epoll.get(), EPOLL_CTL_ADD, fd, &event) != 0) {
      return ErrnoError(errno, "cannot add to an epoll set");
    }
  }
  return std::unique_ptr<HandleSocket>(new HandleSocket(std::make_unique<Impl>(
      std::move(options), std::move(listener), std::move(epoll), std::move(wake))));
}

HandleSocket::HandleSocket(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
HandleSocket::~HandleSocket() = default;

Result<HandleSocket::Registration> HandleSocket::Expect(Expectation expectation) {
  return impl_->Expect(std::move(expectation));
}

void HandleSocket::Drop(HandleRegistrationId id) { impl_->Drop(id); }

const std::string& HandleSocket::path() const { return impl_->path(); }

}  // namespace dws
