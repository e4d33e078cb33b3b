#include "common/service/lifecycle.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/eventually.h"

namespace dws {
namespace {

TEST_CASE("a daemon is not ready at its start and gives the reason", "[lifecycle]") {
  Lifecycle lifecycle;
  CHECK_FALSE(lifecycle.state().ready);
  CHECK(lifecycle.state().reason == "starting");
  lifecycle.SetNotReady("waiting for engine rank 1 of 2 to attach");
  CHECK(lifecycle.state().reason == "waiting for engine rank 1 of 2 to attach");
  lifecycle.SetReady();
  CHECK(lifecycle.state().ready);
  CHECK(lifecycle.state().reason.empty());
}

TEST_CASE("stopping is final", "[lifecycle]") {
  Lifecycle lifecycle;
  lifecycle.SetReady();
  lifecycle.SetStopping();
  lifecycle.SetReady();
  lifecycle.SetNotReady("something");
  CHECK(lifecycle.state() ==
        Lifecycle::State{.ready = false, .stopping = true, .reason = "stopping"});
}

TEST_CASE("a listener gets the present state at once and every later change", "[lifecycle]") {
  Lifecycle lifecycle;
  std::vector<std::string> heard;
  const auto id = lifecycle.AddListener([&](const Lifecycle::State& state) {
    heard.push_back(state.ready ? "ready" : state.reason);
  });
  CHECK(heard == std::vector<std::string>{"starting"});
  lifecycle.SetReady();
  lifecycle.SetReady();
  lifecycle.SetNotReady("no sender");
  CHECK(heard == std::vector<std::string>{"starting", "ready", "no sender"});
  lifecycle.RemoveListener(id);
  lifecycle.SetReady();
  CHECK(heard.size() == 3);
}

TEST_CASE("after changes from many threads a listener has the last state", "[lifecycle]") {
  for (int round = 0; round < 50; ++round) {
    Lifecycle lifecycle;
    std::atomic<int> inside{0};
    std::atomic<bool> overlapped{false};
    std::string last;  // not atomic because calls of one listener do not overlap
    const auto id = lifecycle.AddListener([&](const Lifecycle::State& state) {
      if (++inside != 1) overlapped = true;
      last = state.reason;
      --inside;
    });
    std::vector<std::thread> threads;
    for (int t = 0; t < 4; ++t) {
      threads.emplace_back([&lifecycle, t] {
        for (int i = 0; i < 20; ++i) lifecycle.SetNotReady(std::to_string(t * 100 + i));
      });
    }
    for (std::thread& thread : threads) thread.join();
    lifecycle.RemoveListener(id);
    CHECK_FALSE(overlapped);
    CHECK(last == lifecycle.state().reason);
  }
}

TEST_CASE("no call is running once a listener is removed", "[lifecycle]") {
  Lifecycle lifecycle;
  std::atomic<bool> inside{false};
  std::atomic<bool> leave{false};
  std::atomic<bool> left{false};
  const auto id = lifecycle.AddListener([&](const Lifecycle::State& state) {
    if (!state.ready) return;
    inside = true;
    while (!leave) std::this_thread::yield();
    left = true;
  });
  std::thread changing([&lifecycle] { lifecycle.SetReady(); });
  REQUIRE(Eventually([&] { return inside.load(); }));
  bool left_before = false;
  std::thread removing([&] {
    lifecycle.RemoveListener(id);
    left_before = left;
  });
  leave = true;
  removing.join();
  CHECK(left_before);
  changing.join();
}

TEST_CASE("a listener may change the state and remove itself", "[lifecycle]") {
  Lifecycle lifecycle;
  Lifecycle::ListenerId id;
  int calls = 0;
  id = lifecycle.AddListener([&](const Lifecycle::State& state) {
    ++calls;
    if (state.ready) lifecycle.SetNotReady("not yet");
    if (state.reason == "not yet") lifecycle.RemoveListener(id);
  });
  lifecycle.SetReady();
  CHECK(calls == 3);
  CHECK(lifecycle.state().reason == "not yet");
}

}  // namespace
}  // namespace dws
