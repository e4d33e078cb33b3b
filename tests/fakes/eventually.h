// Waits for an effect of another thread or process, without a fixed sleep.
#pragma once

#include <chrono>
#include <thread>

namespace dws {

// True as soon as `condition()` is true; false if it is not within `timeout`.
template <typename Condition>
bool Eventually(Condition condition, std::chrono::seconds timeout = std::chrono::seconds(20)) {
  const auto until = std::chrono::steady_clock::now() + timeout;
  while (!condition()) {
    if (std::chrono::steady_clock::now() > until) return false;
    std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }
  return true;
}

}  // namespace dws
