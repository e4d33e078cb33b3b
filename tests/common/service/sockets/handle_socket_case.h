// Shared by tests of the handle socket: a client made by hand, and a daemon that counts callbacks.
#pragma once

#include <sys/socket.h>
#include <sys/un.h>

#include <atomic>
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/bytes.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/service/sockets/handle_socket.h"
#include "tests/fakes/temp_folder.h"

namespace dws {

inline UniqueFd Connect(const std::string& path) {
  UniqueFd fd(::socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0));
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.c_str(), path.size() + 1);
  if (::connect(fd.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) != 0) return {};
  const timeval timeout = {.tv_sec = 20, .tv_usec = 0};
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
  return fd;
}

// The next message, "" at the end of the connection.
inline std::string Receive(const UniqueFd& fd) {
  char text[5000];
  const ssize_t size = ::recv(fd.get(), text, sizeof(text), 0);
  return size > 0 ? std::string(text, static_cast<size_t>(size)) : "";
}

inline std::vector<std::byte> Payload(const HandleToken& token, uint32_t total) {
  std::vector<std::byte> payload(token.begin(), token.end());
  payload.resize(20);
  StoreLe(payload.data() + 16, total);
  return payload;
}

inline Status Send(const UniqueFd& fd, const HandleToken& token, uint32_t total,
                   const std::vector<int>& descriptors) {
  return SendDescriptorMessage(fd, Payload(token, total), descriptors);
}

inline size_t OpenDescriptors() {
  size_t count = 0;
  for ([[maybe_unused]] const auto& entry : std::filesystem::directory_iterator("/proc/self/fd")) {
    ++count;
  }
  return count;
}

// A handle socket in a folder of its own, and counts of its callbacks.
struct Daemon {
  explicit Daemon(HandleSocket::Options options = {}) {
    options.path = folder.File("handles");
    socket = HandleSocket::Listen(std::move(options)).value();
  }

  HandleSocket::Registration Expect(size_t count, HandleSocket::Expectation expectation = {}) {
    expectation.descriptor_count = count;
    if (!expectation.on_descriptors) {
      expectation.on_descriptors = [this](std::vector<UniqueFd> descriptors, UniqueFd) {
        delivered += static_cast<int>(descriptors.size());
        return OkStatus();
      };
    }
    if (!expectation.on_hangup) {
      expectation.on_hangup = [this](const Status& why) {
        last_code = why.code();
        ++hangups;
      };
    }
    return socket->Expect(std::move(expectation)).value();
  }

  TempFolder folder;
  std::atomic<int> delivered{0};
  std::atomic<int> hangups{0};
  std::atomic<absl::StatusCode> last_code{absl::StatusCode::kOk};
  std::unique_ptr<HandleSocket> socket;  // last: its thread uses the others
};

}  // namespace dws
