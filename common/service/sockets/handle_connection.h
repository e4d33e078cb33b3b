// One client of a handle socket: where it is on the wire that handle_socket.h describes.
#pragma once

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

// Bytes of each message from the client.
inline constexpr size_t kHandlePayloadBytes = sizeof(HandleToken) + sizeof(uint32_t);

// Owned and used by the socket's thread.
class HandleConnection {
 public:
  // Numbers as in the header's wire, plus the time after an error was answered.
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
  // Of kReceiving and kRefused.
  TimePoint deadline() const { return deadline_; }
  // That it has claimed, and that has not ended.
  const std::optional<HandleRegistrationId>& registration() const { return registration_; }
  // "1 of 2 descriptors": how far it has come.
  size_t received() const { return descriptors_.size(); }
  size_t expected() const { return descriptor_count_; }

  // 1. One message of descriptors; the first claims its registration. INVALID_ARGUMENT and the
  // errors of HandleRegistry::ClaimToken: the connection is to be refused.
  Status Take(DescriptorMessage message, HandleRegistry& registry);
  bool complete() const { return registration_ && descriptors_.size() == descriptor_count_; }

  // 2. -> 3. Answers "ok"; call it with the descriptors taken out and delivered.
  std::vector<UniqueFd> TakeDescriptors() { return std::exchange(descriptors_, {}); }
  void Establish();

  // Answers the error and forgets the registration, which it returns, and the descriptors. The
  // connection stays open until `deadline`: closing with unread messages would make the client lose
  // the answer.
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
  std::vector<UniqueFd> descriptors_;
};

}  // namespace dws
