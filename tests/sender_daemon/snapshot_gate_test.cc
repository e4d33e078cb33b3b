#include "sender_daemon/capture/snapshot_gate.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <thread>
#include <vector>

#include "tests/fakes/eventually.h"

namespace dws {
namespace {

using std::chrono::milliseconds;
using std::chrono::seconds;

constexpr seconds kLong{60};  // never reached by a test that passes

// A capture on its own thread: begins when the gate allows it, ends when the test says so.
class CaptureThread {
 public:
  explicit CaptureThread(SnapshotGate& gate)
      : thread_([this, &gate] {
          gate.BeginCapture();
          begun_ = true;
          while (!may_end_) std::this_thread::yield();
          gate.EndCapture();
        }) {}
  ~CaptureThread() {
    may_end_ = true;
    thread_.join();
  }
  bool begun() const { return begun_; }

 private:
  std::atomic<bool> begun_{false};
  std::atomic<bool> may_end_{false};
  std::thread thread_;
};

// Returns whether a reader that arrives now has to wait.
bool ClosedToReaders(SnapshotGate& gate) {
  if (!gate.BeginRead(Duration::zero()).ok()) return true;
  gate.EndRead();
  return false;
}

// Threads that repeat one action until they are joined.
class Crowd {
 public:
  template <typename Body>
  Crowd(size_t count, Body body) {
    for (size_t i = 0; i < count; ++i) {
      threads_.emplace_back([this, body] {
        while (!stop_) body();
      });
    }
  }
  ~Crowd() {
    stop_ = true;
    for (std::thread& thread : threads_) thread.join();
  }

 private:
  std::atomic<bool> stop_{false};
  std::vector<std::thread> threads_;
};

}  // namespace

TEST_CASE("readers read at the same time", "[snapshot_gate]") {
  SnapshotGate gate;
  CHECK(gate.BeginRead(kLong).ok());
  CHECK(gate.BeginRead(kLong).ok());
  gate.EndRead();
  gate.EndRead();
}

TEST_CASE("a capture waits for the reads in progress", "[snapshot_gate]") {
  SnapshotGate gate;
  REQUIRE(gate.BeginRead(kLong).ok());
  REQUIRE(gate.BeginRead(kLong).ok());
  CaptureThread capture(gate);
  REQUIRE(Eventually([&] { return ClosedToReaders(gate); }));  // it has arrived
  CHECK_FALSE(capture.begun());
  gate.EndRead();
  CHECK_FALSE(capture.begun());
  gate.EndRead();
  CHECK(Eventually([&] { return capture.begun(); }));
}

TEST_CASE("a reader waits for the capture in progress", "[snapshot_gate]") {
  SnapshotGate gate;
  gate.BeginCapture();
  CHECK(ClosedToReaders(gate));
  std::atomic<bool> arrives{false};
  std::atomic<bool> let_in{false};
  std::thread reader([&] {
    arrives = true;
    if (gate.BeginRead(kLong).ok()) {
      let_in = true;
      gate.EndRead();
    }
  });
  CHECK(Eventually([&] { return arrives.load(); }));
  // This lasts as long as a reader that arrived after it needs to be turned away.
  CHECK(absl::IsDeadlineExceeded(gate.BeginRead(milliseconds(5))));
  CHECK_FALSE(let_in);
  gate.EndCapture();
  reader.join();
  CHECK(let_in);
}

TEST_CASE("captures run one at a time", "[snapshot_gate]") {
  SnapshotGate gate;
  int inside = 0;  // not atomic: the gate guards it
  int captures = 0;
  std::vector<std::thread> threads;
  for (int t = 0; t < 4; ++t) {
    threads.emplace_back([&] {
      for (int i = 0; i < 200; ++i) {
        gate.BeginCapture();
        ++inside;
        if (inside == 1) ++captures;
        --inside;
        gate.EndCapture();
      }
    });
  }
  for (std::thread& thread : threads) thread.join();
  CHECK(captures == 800);
}

TEST_CASE("a reader that arrives while a capture waits is let in after the capture",
          "[snapshot_gate]") {
  SnapshotGate gate;
  REQUIRE(gate.BeginRead(kLong).ok());
  CaptureThread capture(gate);
  REQUIRE(Eventually([&] { return ClosedToReaders(gate); }));
  const Status late = gate.BeginRead(milliseconds(5));
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK_FALSE(capture.begun());
  gate.EndRead();
  CHECK(Eventually([&] { return capture.begun(); }));
}

TEST_CASE("a reader gives up at its deadline and reports it", "[snapshot_gate]") {
  SnapshotGate gate;
  gate.BeginCapture();
  const Status late = gate.BeginRead(milliseconds(200));
  CHECK(absl::IsDeadlineExceeded(late));
  CHECK(std::string(Message(late)).find("0.2 s") != std::string::npos);
  gate.EndCapture();
}

TEST_CASE("a reader that gave up blocks no capture and no reader", "[snapshot_gate]") {
  SnapshotGate gate;
  gate.BeginCapture();
  CHECK_FALSE(gate.BeginRead(milliseconds(1)).ok());
  gate.EndCapture();
  gate.BeginCapture();  // would otherwise wait forever for that reader's turn
  gate.EndCapture();
  CHECK(gate.BeginRead(kLong).ok());
  gate.EndRead();
}

TEST_CASE("a free gate admits a reader whose deadline is now", "[snapshot_gate]") {
  SnapshotGate gate;
  CHECK(gate.BeginRead(Duration::zero()).ok());
  gate.EndRead();
}

TEST_CASE("captures that follow each other without a gap do not starve a reader",
          "[snapshot_gate]") {
  SnapshotGate gate;
  // Two captures: while one runs the other waits, so without turns no reader would ever find a gap.
  Crowd captures(2, [&gate] {
    gate.BeginCapture();
    std::this_thread::yield();
    gate.EndCapture();
  });
  for (int i = 0; i < 200; ++i) {
    REQUIRE(gate.BeginRead(kLong).ok());
    gate.EndRead();
  }
}

TEST_CASE("readers that overlap without a gap do not starve a capture", "[snapshot_gate]") {
  SnapshotGate gate;
  std::atomic<int> reading{0};
  Crowd readers(3, [&gate, &reading] {
    if (!gate.BeginRead(kLong).ok()) return;
    ++reading;
    std::this_thread::yield();
    --reading;
    gate.EndRead();
  });
  for (int i = 0; i < 200; ++i) {
    gate.BeginCapture();
    CHECK(reading == 0);
    gate.EndCapture();
  }
}

TEST_CASE("a reader sees a capture completely or not at all", "[snapshot_gate]") {
  SnapshotGate gate;
  std::vector<int> words(64, 0);  // not atomic: the gate guards them
  {
    Crowd captures(1, [&] {
      gate.BeginCapture();
      for (int& word : words) ++word;
      gate.EndCapture();
    });
    for (int i = 0; i < 200; ++i) {
      REQUIRE(gate.BeginRead(kLong).ok());
      const bool whole = words.front() == words.back();
      gate.EndRead();
      CHECK(whole);
    }
  }
}

}  // namespace dws
