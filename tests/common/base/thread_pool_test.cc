#include "common/base/threads/thread_pool.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <vector>

namespace dws {
namespace {

TEST_CASE("each index is visited exactly once", "[thread_pool]") {
  for (const size_t threads : {0, 1, 3}) {
    ThreadPool pool(threads);
    for (const size_t count : {0, 1, 2, 1000}) {
      // Not atomic: a second visit is a race that TSan sees as well.
      std::vector<int> visits(count, 0);
      pool.ParallelFor(count, [&](size_t index, size_t) { ++visits[index]; });
      CHECK(visits == std::vector<int>(count, 1));
    }
  }
}

TEST_CASE("workers that run at the same time have different numbers", "[thread_pool]") {
  ThreadPool pool(3);
  REQUIRE(pool.worker_count() == 4);
  std::vector<std::atomic<bool>> busy(pool.worker_count());
  std::atomic<int> clashes{0};
  std::vector<size_t> scratch(pool.worker_count(), 0);
  pool.ParallelFor(10'000, [&](size_t, size_t worker) {
    if (worker >= busy.size() || busy[worker].exchange(true)) ++clashes;
    ++scratch[worker];
    busy[worker] = false;
  });
  CHECK(clashes == 0);
  size_t total = 0;
  for (const size_t count : scratch) total += count;
  CHECK(total == 10'000);
}

TEST_CASE("loops of several callers share the threads and all of them finish", "[thread_pool]") {
  ThreadPool pool(2);
  std::vector<std::thread> callers;
  std::vector<size_t> sums(4, 0);
  for (size_t caller = 0; caller < sums.size(); ++caller) {
    callers.emplace_back([&pool, &sum = sums[caller]] {
      for (int round = 0; round < 50; ++round) {
        std::vector<size_t> partial(pool.worker_count(), 0);
        pool.ParallelFor(101, [&](size_t index, size_t worker) { partial[worker] += index; });
        for (const size_t part : partial) sum += part;
      }
    });
  }
  for (std::thread& caller : callers) caller.join();
  CHECK(sums == std::vector<size_t>(4, 50 * 5050));
}

TEST_CASE("a loop inside a loop finishes", "[thread_pool]") {
  ThreadPool pool(2);
  std::atomic<int> visits{0};
  pool.ParallelFor(8,
                   [&](size_t, size_t) { pool.ParallelFor(8, [&](size_t, size_t) { ++visits; }); });
  CHECK(visits == 64);
}

}  // namespace
}  // namespace dws
