// A thread that is stuck is told apart from one that works for a long time.
#include "common/base/threads/liveness.h"

#include <catch2/catch.hpp>

namespace dws {
namespace {

using std::chrono::seconds;

TimePoint At(seconds since) { return TimePoint(since); }

// Looks every two seconds, from `from` until `to`.
std::optional<std::string> Watch(LivenessWatch& watch, int from, int to) {
  std::optional<std::string> stuck;
  for (int s = from; s <= to; s += 2) stuck = watch.Stuck(At(seconds(s)));
  return stuck;
}

TEST_CASE("work without progress is stuck until it makes progress again", "[liveness]") {
  Liveness worker, pool;
  LivenessWatch watch({{.name = "the worker", .work = &worker, .helpers = {&pool}}}, seconds(20));
  worker.BeginWork();
  CHECK(Watch(watch, 0, 20) == std::nullopt);
  CHECK(Watch(watch, 22, 30) == "the worker");
  pool.Beat();
  CHECK(Watch(watch, 32, 50) == std::nullopt);
  CHECK(Watch(watch, 52, 60) == "the worker");
  worker.Beat();
  CHECK(Watch(watch, 62, 64) == std::nullopt);
}

TEST_CASE("a thread without work or waiting for others is not stuck", "[liveness]") {
  Liveness worker;
  LivenessWatch watch({{.name = "the worker", .work = &worker, .helpers = {}}}, seconds(20));
  CHECK(Watch(watch, 0, 100) == std::nullopt);
  {
    const WorkScope work(&worker);
    const WaitScope wait(&worker);
    CHECK(Watch(watch, 102, 200) == std::nullopt);
  }
  CHECK(Watch(watch, 202, 300) == std::nullopt);
  const WorkScope work(&worker);
  CHECK(Watch(watch, 302, 330) == "the worker");
}

TEST_CASE("a process that did not run for an hour is not stuck", "[liveness]") {
  Liveness worker;
  LivenessWatch watch({{.name = "the worker", .work = &worker, .helpers = {}}}, seconds(20));
  worker.BeginWork();
  CHECK(watch.Stuck(At(seconds(0))) == std::nullopt);
  CHECK(watch.Stuck(At(seconds(3600))) == std::nullopt);
  CHECK(watch.Stuck(At(seconds(3602))) == std::nullopt);
}

TEST_CASE("of several threads the stuck one is named", "[liveness]") {
  Liveness a, b;
  LivenessWatch watch(
      {{.name = "a", .work = &a, .helpers = {}}, {.name = "b", .work = &b, .helpers = {}}},
      seconds(4));
  const WorkScope both(&a);
  b.BeginWork();
  for (int s = 0; s < 20; s += 2) {
    a.Beat();
    static_cast<void>(watch.Stuck(At(seconds(s))));
  }
  a.Beat();
  CHECK(watch.Stuck(At(seconds(20))) == "b");
}

}  // namespace
}  // namespace dws
