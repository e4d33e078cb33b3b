#include "common/service/program/sd_notify.h"

#include <fmt/format.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdlib>
#include <cstring>
#include <ctime>

#include "common/base/unique_fd.h"

namespace dws {
namespace {

void Send(std::string_view lines) {
  const char* const path = std::getenv("NOTIFY_SOCKET");
  if (path == nullptr) return;
  const size_t size = std::strlen(path);
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  if (size < 2 || size > sizeof(address.sun_path)) return;
  std::memcpy(address.sun_path, path, size);
  // An abstract name begins with a zero byte; its length is given by the size of the address.
  if (path[0] == '@') address.sun_path[0] = '\0';
  const UniqueFd fd(::socket(AF_UNIX, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  if (!fd.valid()) return;
  static_cast<void>(::sendto(fd.get(), lines.data(), lines.size(), MSG_DONTWAIT | MSG_NOSIGNAL,
                             reinterpret_cast<const sockaddr*>(&address),
                             static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + size)));
}

std::optional<uint64_t> NumberFrom(const char* name) {
  const char* const text = std::getenv(name);
  if (text == nullptr) return std::nullopt;
  uint64_t number = 0;
  const char* const end = text + std::strlen(text);
  const auto parsed = std::from_chars(text, end, number);
  if (parsed.ec != std::errc() || parsed.ptr != end) return std::nullopt;
  return number;
}

}  // namespace

void NotifyReady() { Send(fmt::format("READY=1\nMAINPID={}", ::getpid())); }

void NotifyStatus(std::string_view text) {
  std::string line = "STATUS=";
  for (const char c : text) line += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
  Send(line);
}

void NotifyReloading() {
  // systemd compares this time with the time at which it sent SIGHUP.
  timespec now = {};
  ::clock_gettime(CLOCK_MONOTONIC, &now);
  Send(fmt::format(
      "RELOADING=1\nMONOTONIC_USEC={}",
      static_cast<uint64_t>(now.tv_sec) * 1'000'000 + static_cast<uint64_t>(now.tv_nsec) / 1000));
}

void NotifyStopping() { Send("STOPPING=1"); }

void NotifyWatchdog() { Send("WATCHDOG=1"); }

std::optional<std::chrono::microseconds> WatchdogInterval() {
  const std::optional<uint64_t> interval = NumberFrom("WATCHDOG_USEC");
  if (!interval.has_value() || *interval == 0) return std::nullopt;
  const std::optional<uint64_t> pid = NumberFrom("WATCHDOG_PID");
  if (pid.has_value() && *pid != static_cast<uint64_t>(::getpid())) return std::nullopt;
  // Cap the interval: feeding more often than asked does no harm, but an interval that overflows
  // the clock's count would make every moment the next deadline.
  constexpr uint64_t kIntervalMax = std::chrono::microseconds(std::chrono::hours(1)).count();
  return std::chrono::microseconds(std::min(*interval, kIntervalMax));
}

}  // namespace dws
