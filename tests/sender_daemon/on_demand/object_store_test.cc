#include "sender_daemon/on_demand/objects/object_store.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <optional>
#include <string>
#include <thread>
#include <vector>

namespace dws {
namespace {

using Catch::Matchers::Contains;

std::string Text(const Status& status) { return std::string(Message(status)); }

// Puts as a service does: reserves first.
Status Put(ObjectStore& store, uint64_t process, const RankObjectKey& key, size_t count,
           int value = 7, const std::optional<std::string>& over_because = std::nullopt) {
  DWS_ASSIGN_OR_RETURN(auto room, store.Reserve(process, key, count, over_because));
  auto object = std::make_shared<RankObject>();
  object->process = process;
  object->number = key.number;
  object->bytes.assign(count, static_cast<std::byte>(value));
  object->room = std::move(room);
  return store.Put(key.name, object);
}

struct Asked {
  std::optional<ObjectStore::Answer> answer;
  uint64_t waiter = 0;

  std::string why() const { return answer.has_value() ? Text(answer->status) : "it waits"; }
};

std::shared_ptr<Asked> Ask(ObjectStore& store, const ObjectStore::Wanted& wanted) {
  auto asked = std::make_shared<Asked>();
  asked->waiter =
      store.Fetch(wanted, [asked](const ObjectStore::Answer& answer) { asked->answer = answer; });
  return asked;
}

std::shared_ptr<Asked> Ask(ObjectStore& store, uint64_t process, const RankObjectKey& key) {
  return Ask(store, {.process = process, .key = key, .size_bytes_max = 100});
}

std::shared_ptr<Asked> AskNewer(ObjectStore& store, uint64_t process, const RankObjectKey& key) {
  return Ask(store, {.process = process, .key = key, .newer = true, .size_bytes_max = 100});
}

}  // namespace

TEST_CASE("a fetch waits until the object is put", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2), .epoch = 40});
  const uint64_t process = store.Attach("pid 7");
  CHECK(process == 41);
  const auto asked = Ask(store, process, {"sum", 5});
  const auto forgotten = Ask(store, process, {"sum", 5});
  CHECK(store.Forget(forgotten->waiter));
  CHECK_FALSE(store.Forget(forgotten->waiter));
  CHECK(Put(store, process, {"other", 5}, 3).ok());
  CHECK(Put(store, process, {"sum", 4}, 3).ok());
  CHECK(asked->why() == "it waits");
  CHECK(Put(store, process, {"sum", 5}, 4).ok());
  REQUIRE(asked->answer.has_value());
  CHECK(asked->answer->object->bytes.size() == 4);
  CHECK_FALSE(forgotten->answer.has_value());
  const auto small =
      Ask(store, {.process = process, .key = {"sum", 5}, .newer = false, .size_bytes_max = 3});
  CHECK(small->answer->status.code() == absl::StatusCode::kOutOfRange);
  CHECK_THAT(small->why(), Contains("'sum' number 5 of rank 2 has 4 bytes, expected at most 3"));
}

TEST_CASE("a fetch of something newer takes what another process or a later number has",
          "[objects]") {
  ObjectStore store({.rank = TrainerRank(2)});
  const uint64_t first = store.Attach("pid 7");
  const auto any = AskNewer(store, 0, {"hello", 0});
  CHECK(Put(store, first, {"hello", 3}, 4).ok());
  CHECK(any->answer->object->number == 3);
  const auto later = AskNewer(store, first, {"hello", 3});
  CHECK(later->why() == "it waits");
  CHECK(Put(store, first, {"hello", 8}, 4).ok());
  CHECK(later->answer->object->number == 8);
  const uint64_t second = store.Attach("pid 8");
  CHECK(Put(store, second, {"hello", 1}, 4).ok());
  CHECK(AskNewer(store, first, {"hello", 8})->answer->object->process == second);
}

TEST_CASE("a process that is gone ends waits at once, by name", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2)});
  CHECK_THAT(Ask(store, 1, {"a", 1})->why(), Contains("no process of rank 2 has attached"));
  const uint64_t process = store.Attach("pid 7");
  CHECK(Put(store, process, {"b", 1}, 4).ok());
  const auto asked = Ask(store, process, {"a", 1});
  store.Detach(process);
  REQUIRE(asked->answer.has_value());
  CHECK(absl::IsUnavailable(asked->answer->status));
  CHECK_THAT(asked->why(), Contains("rank 2 (pid 7) is gone"));
  CHECK_THAT(Ask(store, process, {"b", 1})->why(), Contains("rank 2 (pid 7) is gone"));
  const uint64_t next = store.Attach("pid 8");
  store.Detach(process);  // a late hang-up of the first one
  CHECK(absl::IsFailedPrecondition(Put(store, process, {"a", 1}, 4)));
  CHECK_THAT(Ask(store, process, {"a", 1})->why(), Contains("another process of rank 2 (pid 8)"));
  const auto of_next = Ask(store, next, {"a", 1});
  const uint64_t last = store.Attach("pid 9");  // while pid 8 is attached
  CHECK_THAT(of_next->why(), Contains("another process of rank 2 (pid 9)"));
  CHECK(Put(store, last, {"a", 1}, 4).ok());
}

TEST_CASE("a rank that goes on tells those that wait why", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2)});
  const uint64_t process = store.Attach("pid 7");
  CHECK(Put(store, process, {"sum", 5}, 4).ok());
  const auto asked = Ask(store, process, {"ready", 5});
  CHECK(Put(store, process, {"hello", 8}, 1, 7, "rank 1 is gone").ok());
  CHECK(absl::IsAborted(asked->answer->status));
  CHECK(asked->why() == "rank 2 (pid 7) has gone on to number 8: rank 1 is gone");
  CHECK(absl::IsAborted(Ask(store, process, {"sum", 5})->answer->status));
  CHECK(absl::IsAborted(Put(store, process, {"late", 7}, 4)));
  CHECK(Put(store, process, {"sum", 9}, 4).ok());
  CHECK(absl::IsAborted(Put(store, process, {"sum", 8}, 4)));
  CHECK(absl::IsAborted(Ask(store, process, {"sum", 8})->answer->status));
}

TEST_CASE("objects are bounded, and what is dropped makes room once nobody sends it", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2), .bytes_max = 10});
  const uint64_t process = store.Attach("pid 7");
  CHECK(Put(store, process, {"a", 1}, 6).ok());
  const Status over = Put(store, process, {"b", 1}, 5);
  CHECK(absl::IsResourceExhausted(over));
  CHECK_THAT(Text(over), Contains("'b' number 1 has 5 bytes, and rank 2 has 6 in other objects: "
                                  "expected at most 10 in all, raise --object-bytes"));
  CHECK(Put(store, process, {"b", 1}, 4).ok());
  CHECK(absl::IsResourceExhausted(Put(store, process, {"c", 1}, ~uint64_t{0} - 3)));
  {
    const auto sending = Ask(store, process, {"a", 1});
    const auto waits = Ask(store, process, {"c", 1});
    CHECK(absl::IsResourceExhausted(Put(store, process, {"a", 2}, 7, 7, "it began again")));
    CHECK_THAT(waits->why(), Contains("gone on to number 2: it began again"));
  }
  CHECK(Put(store, process, {"a", 2}, 5).ok());
  CHECK(Put(store, process, {"a", 2}, 5).ok());  // again
  CHECK(Put(store, process, {"a", 2}, 5, 8).code() == absl::StatusCode::kAlreadyExists);
  CHECK(Put(store, process, {"b", 2}, 5).ok());
}

TEST_CASE("names are bounded, and a store that stops ends waits", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2)});
  const uint64_t process = store.Attach("pid 7");
  const std::string longest(limits::kObjectNameBytesMax, 'n');
  CHECK(Put(store, process, {longest, 2}, 0).ok());
  CHECK(absl::IsInvalidArgument(Put(store, process, {longest + "n", 2}, 0)));
  CHECK(absl::IsInvalidArgument(Put(store, process, {"", 2}, 0)));
  CHECK(absl::IsInvalidArgument(Ask(store, process, {longest + "n", 2})->answer->status));
  const auto waits = Ask(store, process, {"a", 3});
  store.Stop();
  CHECK(absl::IsUnavailable(waits->answer->status));
}

TEST_CASE("processes, puts, fetches and hang-ups of several threads are answered once each",
          "[objects]") {
  constexpr uint64_t kRounds = 3000;
  ObjectStore store({.rank = TrainerRank(2), .bytes_max = 1000});
  std::atomic<uint64_t> begun{0};
  std::atomic<uint64_t> ended{0};
  std::atomic<uint64_t> wrong{0};  // Catch2's checks are for one thread
  std::atomic<uint64_t> process{store.Attach("pid 1")};
  const auto put = [&] {
    for (uint64_t number = 1; number <= kRounds; ++number) {
      (void)Put(store, process, {"sum", number}, 10, 7,
                number % 5 == 0 ? std::optional<std::string>("it goes on") : std::nullopt);
    }
  };
  const auto fetch = [&](bool newer) {
    for (uint64_t number = 1; number <= kRounds; ++number) {
      ++begun;
      const uint64_t waiter = store.Fetch(
          {.process = process, .key = {"sum", number}, .newer = newer, .size_bytes_max = 100},
          [&](const ObjectStore::Answer& answer) {
            if (answer.object != nullptr && answer.object->bytes.size() != 10) ++wrong;
            ++ended;
          });
      if (number % 3 == 0 && waiter != 0 && store.Forget(waiter)) ++ended;
    }
  };
  std::vector<std::thread> threads;
  threads.emplace_back(put);
  threads.emplace_back([&] { fetch(false); });
  threads.emplace_back([&] { fetch(true); });
  threads.emplace_back([&] {
    for (int i = 0; i < 300; ++i) {
      process = store.Attach("pid 2");
      if (store.counts().held_bytes > 1000) ++wrong;
    }
  });
  for (std::thread& thread : threads) thread.join();
  store.Stop();
  CHECK(begun == ended);
  CHECK(wrong == 0);
  store.Detach(process);
  CHECK(store.counts().objects == 0);
  CHECK(store.counts().held_bytes == 0);
  CHECK(store.counts().waits == 0);
}

}  // namespace dws
