#include "common/service/sockets/handle_connection.h"

#include <sys/socket.h>

#include <algorithm>
#include <cstring>
#include <iterator>
#include <string>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/printable.h"
#include "common/base/utf8.h"

namespace dws {

void HandleConnection::Answer(std::string_view text) const {
  // Errors are ignored: when the client is gone, the hang-up event reports it.
  static_cast<void>(::send(fd_.get(), text.data(), text.size(), MSG_DONTWAIT | MSG_NOSIGNAL));
}

Status HandleConnection::Take(DescriptorMessage message, HandleRegistry& registry) {
  if (stage_ == Stage::kEstablished) {
    return InvalidArgumentError("expected nothing more after \"ok\", found a message of {} bytes",
                                message.payload.size());
  }
  if (message.payload.size() != kHandlePayloadBytes) {
    return InvalidArgumentError("expected messages of {} bytes (token, descriptor count), found {}",
                                kHandlePayloadBytes, message.payload.size());
  }
  HandleToken token;
  std::memcpy(token.data(), message.payload.data(), token.size());
  const auto total = LoadLe<uint32_t>(message.payload.data() + token.size());
  if (!registration_.has_value()) {
    DWS_ASSIGN_OR_RETURN(const HandleRegistry::Claim claim, registry.ClaimToken(token, peer_.uid));
    registration_ = claim.id;
    token_ = token;
    descriptor_count_ = claim.descriptor_count;
    lasts_ = claim.lasts;
  } else if (token != token_) {
    return InvalidArgumentError("the token changed within one connection");
  }
  if (total != descriptor_count_) {
    return InvalidArgumentError(
        "expected {} descriptors, as registered, found an announcement of {}", descriptor_count_,
        total);
  }
  const size_t missing = descriptor_count_ - descriptors_.size();
  const size_t least = descriptor_count_ == 0 ? 0 : 1;
  if (message.descriptors.size() < least || message.descriptors.size() > missing) {
    return InvalidArgumentError("expected {} to {} more descriptors, found {} in one message",
                                least, missing, message.descriptors.size());
  }
  std::move(message.descriptors.begin(), message.descriptors.end(),
            std::back_inserter(descriptors_));
  return OkStatus();
}

void HandleConnection::Establish(TimePoint now) {
  stage_ = Stage::kEstablished;
  deadline_ = lasts_.has_value() ? now + *lasts_ : TimePoint::max();
  Answer("ok");
}

std::optional<HandleRegistrationId> HandleConnection::Refuse(const Status& why,
                                                             TimePoint deadline) {
  const std::string text = fmt::format("error: {}", EscapeUnprintable(Message(why)));
  Answer(Utf8Prefix(text, limits::kErrorBytesMax));
  stage_ = Stage::kRefused;
  deadline_ = deadline;
  descriptors_.clear();
  return std::exchange(registration_, std::nullopt);
}

}  // namespace dws
