// One client of a handle socket, and its stage in the protocol that handle_socket.h describes.
#pragma once

#include <chrono>
#include <cstddef>
#include <optional>
#include <string_view>
#include <vector>

#include "common/base/clock.h"
#include "common/base/unique_fd.h"
#include "common/service/sockets/descriptor_message.h"
#include "common/service/sockets/handle_registry.h"
#include "common/service/sockets/handle_socket.h"
#include "common/service/sockets/unix_socket.h"

namespace dws {

// The payload size of each message from the client.
inline constexpr size_t kHandlePayloadBytes = sizeof(HandleToken) + sizeof(uint32_t);

// The state of one connection. The socket's thread owns it and is the only one that uses it.
class HandleConnection {
 public:
  // The numbers are the steps in handle_socket.h. kRefused is the time after an error was answered.
  enum class Stage {
    kReceiving,    // 1
    kEstablished,  // 3
    kRefused,      // what the client still sends is discarded
  };

  HandleConnection(UnixConnection accepted, TimePoint deadline)
      : fd_(std::move(accepted.fd)), peer_(accepted.peer), deadline_(deadline) {}

  const UniqueFd& fd() const { return fd_; }
  const UnixPeer& peer() const { return peer_; }
  Stage stage() const { return stage_; }
  // In kEstablished, when it is overdue: TimePoint::max() if never, or when that has been reported.
  TimePoint deadline() const { return deadline_; }
  void SetOverdueReported() { deadline_ = TimePoint::max(); }
  // The registration that this connection has claimed, until it ends.
  const std::optional<HandleRegistrationId>& registration() const { return registration_; }
  // Progress, for messages: "1 of 2 descriptors".
  size_t received() const { return descriptors_.size(); }
  size_t expected() const { return descriptor_count_; }

  // Step 1: takes one message of descriptors; the first message claims the registration. After an
  // error (INVALID_ARGUMENT, or one of HandleRegistry::ClaimToken) the caller must refuse the
  // connection.
  Status Take(DescriptorMessage message, HandleRegistry& registry);
  bool complete() const { return registration_ && descriptors_.size() == descriptor_count_; }

  // Step 2, to stage 3: Establish answers "ok". First take the descriptors out and deliver them.
  std::vector<UniqueFd> TakeDescriptors() { return std::exchange(descriptors_, {}); }
  void Establish(TimePoint now);

  // Answers the error, closes the descriptors, and returns the registration, which it forgets. The
  // connection stays open until `deadline`: if it were closed with unread messages, the client
  // would lose the answer.
  std::optional<HandleRegistrationId> Refuse(const Status& why, TimePoint deadline);

 private:
  void Answer(std::string_view text) const;

  UniqueFd fd_;
  UnixPeer peer_;
  Stage stage_ = Stage::kReceiving;
  TimePoint deadline_;
  std::optional<HandleRegistrationId> registration_;
  HandleToken token_ = {};  // of the registration
  size_t descriptor_count_ = 0;
  std::optional<std::chrono::nanoseconds> lasts_;  // of the registration, once established
  std::vector<UniqueFd> descriptors_;
};

}  // namespace dws
