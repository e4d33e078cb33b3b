// A receiver's connection on which nothing is sent: for tests of the hub's state.
#pragma once

#include "sender_daemon/serve/receiver_hub.h"

namespace dws {

class SilentConnection final : public SyncConnection {
 public:
  void WelcomeDue() override {}
  void AnnounceDue() override {}
  void KeepaliveDue() override {}
  void Close(const Status&) override {}
};

}  // namespace dws
