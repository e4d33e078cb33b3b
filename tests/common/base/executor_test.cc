#include "common/base/threads/executor.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <thread>
#include <utility>
#include <vector>

#include "tests/fakes/eventually.h"

namespace dws {
namespace {

// Holds the thread that enters it until it is opened.
class Door {
 public:
  void Enter() {
    entered_ = true;
    while (!open_) std::this_thread::yield();
  }
  void Open() { open_ = true; }
  void AwaitEntered() {
    REQUIRE(Eventually([this] { return entered_.load(); }));
  }

 private:
  std::atomic<bool> entered_{false};
  std::atomic<bool> open_{false};
};

constexpr size_t kManyTasks = 1'000'000;

// Opens the door once the executor refuses tasks.
void OpenWhenStopping(Executor& executor, Door& door) {
  while (executor.Post([] {})) std::this_thread::yield();
  door.Open();
}

}  // namespace

TEST_CASE("one thread runs tasks in the order they were posted", "[executor]") {
  std::vector<int> ran;  // the executor's only thread writes, Stop orders it before the reads
  Executor executor(1, 1000);
  std::atomic<int> done{0};
  for (int i = 0; i < 500; ++i) {
    REQUIRE(executor.Post([&ran, &done, i] {
      ran.push_back(i);
      ++done;
    }));
  }
  REQUIRE(Eventually([&] { return done == 500; }));
  executor.Stop();
  REQUIRE(ran.size() == 500);
  for (int i = 0; i < 500; ++i) CHECK(ran[static_cast<size_t>(i)] == i);
}

TEST_CASE("several threads run tasks at the same time", "[executor]") {
  Executor executor(2, 10);
  Door first;
  Door second;
  REQUIRE(executor.Post([&] { first.Enter(); }));
  REQUIRE(executor.Post([&] { second.Enter(); }));
  first.AwaitEntered();
  second.AwaitEntered();
  first.Open();
  second.Open();
}

TEST_CASE("a full queue refuses a task and keeps those it has", "[executor]") {
  std::atomic<int> ran{0};
  Door door;
  Executor executor(1, 2);
  REQUIRE(executor.Post([&] { door.Enter(); }));
  door.AwaitEntered();  // it runs and is no longer in the queue
  CHECK(executor.Post([&] { ++ran; }));
  CHECK(executor.Post([&] { ++ran; }));
  CHECK_FALSE(executor.Post([&] { ran += 100; }));
  door.Open();
  CHECK(Eventually([&] { return ran == 2; }));
  CHECK(executor.Post([] {}));
}

TEST_CASE("after Stop a task is refused", "[executor]") {
  Executor executor(1, 10);
  executor.Stop();
  CHECK_FALSE(executor.Post([] {}));
  executor.Stop();
}

TEST_CASE("Stop waits for the task that runs and drops those not started", "[executor]") {
  std::atomic<bool> finished{false};
  std::atomic<bool> started_late{false};
  Door door;
  Executor executor(1, kManyTasks);
  REQUIRE(executor.Post([&] {
    door.Enter();
    finished = true;
  }));
  REQUIRE(executor.Post([&] { started_late = true; }));
  door.AwaitEntered();
  std::thread opener([&] { OpenWhenStopping(executor, door); });
  executor.Stop();
  CHECK(finished);
  CHECK_FALSE(started_late);
  opener.join();
}

TEST_CASE("a task may post the next one", "[executor]") {
  std::atomic<int> ran{0};
  Executor executor(1, 10);
  REQUIRE(executor.Post([&] {
    if (executor.Post([&] { ++ran; })) ++ran;
  }));
  CHECK(Eventually([&] { return ran == 2; }));
}

TEST_CASE("a dropped task whose destructor posts another task does not deadlock", "[executor]") {
  // Like the last reference to a stream, whose destructor posts its clean-up.
  struct PostsWhenDestroyed {
    PostsWhenDestroyed(Executor& to, bool& answer) : executor(to), accepted(answer) {}
    ~PostsWhenDestroyed() {
      accepted = executor.Post([] {});
    }
    Executor& executor;
    bool& accepted;
  };
  bool accepted = true;
  Door door;
  Executor executor(1, kManyTasks);
  REQUIRE(executor.Post([&] { door.Enter(); }));
  door.AwaitEntered();
  auto object = std::make_shared<PostsWhenDestroyed>(executor, accepted);
  REQUIRE(executor.Post([kept = std::move(object)] {}));
  std::thread opener([&] { OpenWhenStopping(executor, door); });
  executor.Stop();  // would not return if tasks were destroyed under the lock
  opener.join();
  CHECK_FALSE(accepted);
}

TEST_CASE("the destructor stops", "[executor]") {
  std::atomic<bool> finished{false};
  Door door;
  {
    Executor executor(1, 10);
    REQUIRE(executor.Post([&] {
      door.Enter();
      finished = true;
    }));
    door.AwaitEntered();
    door.Open();
  }
  CHECK(finished);
}

}  // namespace dws
