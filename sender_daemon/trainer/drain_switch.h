// Decides whether the sender takes versions: the operator's Drain turns this off, and undoing the
// drain turns it on.
#pragma once

#include <atomic>
#include <string_view>

#include "common/base/status.h"

namespace dws {

// Threads: safe from any.
class DrainSwitch {
 public:
  void Set(bool draining) { draining_.store(draining); }
  bool draining() const { return draining_.load(); }

  // UNAVAILABLE while draining; the message says that `what` ("version 7") is refused.
  Status Admit(std::string_view what) const {
    if (!draining()) return OkStatus();
    return UnavailableError(
        "this sender is drained by its operator and refuses {}: earlier versions are being "
        "delivered; `dwsctl undrain` makes it take versions again",
        what);
  }

 private:
  std::atomic<bool> draining_{false};
};

}  // namespace dws
