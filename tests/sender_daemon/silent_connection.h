// A receiver's connection that nothing is sent over: for tests of what the hub knows.
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
