// The callback ends its own registration, whose id is known only after Expect: it waits for that.
#include "common/service/sockets/pass_descriptor.h"

#include <future>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/service/sockets/descriptor_message.h"

namespace dws {

Result<HandleToken> PassDescriptor(HandleSocket& handles, const std::optional<UnixPeer>& peer,
                                   std::string_view payload,
                                   std::function<Result<UniqueFd>()> make) {
  const auto id = std::make_shared<std::promise<HandleRegistrationId>>();
  std::shared_future<HandleRegistrationId> passed = id->get_future().share();
  const auto pass = [&handles, passed, payload = std::string(payload), make = std::move(make)](
                        const std::vector<UniqueFd>&, const UniqueFd& connection) -> Status {
    DWS_ASSIGN_OR_RETURN(const UniqueFd descriptor, make());
    const int descriptors[] = {descriptor.get()};
    DWS_RETURN_IF_ERROR(SendDescriptorMessage(connection, AsBytes(payload), descriptors));
    handles.Drop(passed.get());
    return OkStatus();
  };
  DWS_ASSIGN_OR_RETURN(
      const HandleSocket::Registration expected,
      handles.Expect({.peer = peer, .on_descriptors = pass, .on_hangup = [](const Status&) {}}));
  id->set_value(expected.id);
  return expected.token;
}

}  // namespace dws
