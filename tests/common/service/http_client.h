// A client of an HttpEndpoint that sends raw bytes, for tests of malformed requests.
#pragma once

#include <arpa/inet.h>
#include <poll.h>
#include <sys/socket.h>

#include <cstdint>
#include <string>
#include <string_view>

#include "common/base/unique_fd.h"

namespace dws {

class HttpClient {
 public:
  explicit HttpClient(uint16_t port, int timeout_ms = 20'000)
      : fd_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    const timeval timeout = {.tv_sec = timeout_ms / 1000, .tv_usec = timeout_ms % 1000 * 1000};
    ::setsockopt(fd_.get(), SOL_SOCKET, SO_RCVTIMEO, &timeout, sizeof(timeout));
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_port = htons(port);
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    connected_ = ::connect(fd_.get(), reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0;
  }

  bool connected() const { return connected_; }
  int fd() const { return fd_.get(); }

  // False when the other side has closed.
  bool Send(std::string_view bytes) {
    return ::send(fd_.get(), bytes.data(), bytes.size(), MSG_NOSIGNAL) ==
           static_cast<ssize_t>(bytes.size());
  }

  // Everything until the other side closes or the timeout passes.
  std::string ReadAll() {
    std::string answer;
    char part[1000];
    for (ssize_t size; (size = ::recv(fd_.get(), part, sizeof(part), 0)) > 0;) {
      answer.append(part, static_cast<size_t>(size));
    }
    return answer;
  }

  // Returns whether the other side closes or answers within `timeout_ms`.
  bool Readable(int timeout_ms) {
    pollfd poll = {.fd = fd_.get(), .events = POLLIN};
    return ::poll(&poll, 1, timeout_ms) > 0;
  }

  static std::string Request(uint16_t port, std::string_view request, int timeout_ms = 20'000) {
    HttpClient client(port, timeout_ms);
    if (!client.connected() || !client.Send(request)) return "";
    return client.ReadAll();
  }
  static std::string Get(uint16_t port, const std::string& path, int timeout_ms = 20'000) {
    return Request(port, "GET " + path + " HTTP/1.1\r\nHost: test\r\n\r\n", timeout_ms);
  }

 private:
  UniqueFd fd_;
  bool connected_ = false;
};

}  // namespace dws
