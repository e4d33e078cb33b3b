// An HTTP server of loopback whose replies a test makes: one request a connection.
#pragma once

#include <arpa/inet.h>
#include <sys/socket.h>

#include <catch2/catch.hpp>
#include <csignal>
#include <functional>
#include <list>
#include <optional>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "common/base/threads/mutex.h"
#include "common/base/unique_fd.h"

namespace dws {

// Lifecycle: the destructor ends all connections. Threads: safe from any.
class ReplyServer {
 public:
  // Gets a request's head and body, and returns the whole reply; nullopt: there is none, and the
  // connection stays open. Called from any thread.
  using Answer = std::function<std::optional<std::string>(const std::string& request)>;

  explicit ReplyServer(Answer answer)
      : answer_(std::move(answer)), listener_(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0)) {
    std::signal(SIGPIPE, SIG_IGN);
    sockaddr_in address = {};
    address.sin_family = AF_INET;
    address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
    socklen_t size = sizeof(address);
    REQUIRE(::bind(listener_.get(), reinterpret_cast<sockaddr*>(&address), size) == 0);
    REQUIRE(::listen(listener_.get(), 64) == 0);
    ::getsockname(listener_.get(), reinterpret_cast<sockaddr*>(&address), &size);
    url_ = "http://127.0.0.1:" + std::to_string(ntohs(address.sin_port));
    accepting_ = std::thread([this] { Accept(); });
  }
  ~ReplyServer() {
    ::shutdown(listener_.get(), SHUT_RDWR);
    accepting_.join();
    for (const UniqueFd& each : connections_) ::shutdown(each.get(), SHUT_RDWR);
    for (std::thread& each : serving_) each.join();
  }

  // With a Content-Length, and what else `headers` has: lines that end with "\r\n".
  static std::string Reply(int code, const std::string& body, const std::string& headers = "") {
    return "HTTP/1.1 " + std::to_string(code) +
           " x\r\nConnection: close\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" +
           headers + "\r\n" + body;
  }

  const std::string& url() const { return url_; }
  // The first lines of the requests so far, without the protocol.
  std::vector<std::string> requests() const {
    MutexLock lock(mutex_);
    return requests_;
  }

 private:
  void Accept() {
    while (true) {
      const int fd = ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC);
      if (fd < 0) return;
      connections_.emplace_back(fd);
      serving_.emplace_back([this, fd] { Serve(fd); });
    }
  }

  void Serve(int fd) {
    std::string text;
    size_t wanted = std::string::npos;
    char bytes[4096];
    while (text.size() < wanted) {
      const ssize_t got = ::recv(fd, bytes, sizeof(bytes), 0);
      if (got <= 0) return;
      text.append(bytes, static_cast<size_t>(got));
      const size_t end = text.find("\r\n\r\n");
      if (end == std::string::npos) continue;
      const size_t length = text.find("Content-Length: ");
      wanted = end + 4 + (length < end ? std::stoul(text.substr(length + 16)) : 0);
    }
    {
      MutexLock lock(mutex_);
      requests_.push_back(text.substr(0, text.find(" HTTP/")));
    }
    const std::optional<std::string> reply = answer_(text);
    if (!reply.has_value()) return;
    for (size_t sent = 0; sent < reply->size();) {
      const ssize_t more = ::send(fd, reply->data() + sent, reply->size() - sent, MSG_NOSIGNAL);
      if (more <= 0) break;
      sent += static_cast<size_t>(more);
    }
    ::shutdown(fd, SHUT_RDWR);
  }

  const Answer answer_;
  const UniqueFd listener_;
  std::string url_;
  mutable Mutex mutex_;
  std::vector<std::string> requests_ GUARDED_BY(mutex_);
  std::list<UniqueFd> connections_;  // of the accepting thread, until it has ended
  std::list<std::thread> serving_;
  std::thread accepting_;
};

}  // namespace dws
