#include "sender_daemon/on_demand/objects/object_store.h"

#include <catch2/catch.hpp>
#include <optional>
#include <string>

namespace dws {
namespace {

using Catch::Matchers::Contains;

std::string Text(const Status& status) { return std::string(Message(status)); }

RankObjectPtr Bytes(size_t count, int value = 7) {
  auto object = std::make_shared<RankObject>();
  object->bytes.assign(count, static_cast<std::byte>(value));
  return object;
}

// Puts as a service does: reserves first.
Status Put(ObjectStore& store, uint64_t process, const RankObjectKey& key, size_t count,
           int value = 7) {
  DWS_RETURN_IF_ERROR(store.Reserve(process, key, count));
  return store.Put(process, key, Bytes(count, value));
}

struct Asked {
  std::optional<ObjectStore::Answer> answer;
  uint64_t waiter = 0;
};

std::shared_ptr<Asked> Ask(ObjectStore& store, const RankObjectKey& key, bool patient = false,
                           uint64_t size_bytes_max = 100) {
  auto asked = std::make_shared<Asked>();
  asked->waiter =
      store.Fetch({.key = key, .size_bytes_max = size_bytes_max, .patient = patient},
                  [asked](const ObjectStore::Answer& answer) { asked->answer = answer; });
  return asked;
}

}  // namespace

TEST_CASE("a fetch waits until the object is put", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2)});
  const uint64_t process = store.Attach("pid 7 on a").process;
  const auto asked = Ask(store, {5, "sum"});
  const auto forgotten = Ask(store, {5, "sum"});
  store.Forget(forgotten->waiter);
  CHECK(Put(store, process, {5, "other"}, 3).ok());
  CHECK_FALSE(asked->answer.has_value());
  CHECK(Put(store, process, {5, "sum"}, 4).ok());
  REQUIRE(asked->answer.has_value());
  CHECK(asked->answer->object->bytes.size() == 4);
  CHECK_FALSE(forgotten->answer.has_value());
  CHECK(Ask(store, {5, "sum"}, false, 3)->answer->status.code() == absl::StatusCode::kOutOfRange);
}

TEST_CASE("a process that is gone ends waits at once, by name, but not patient ones", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2)});
  CHECK_THAT(Text(Ask(store, {1, "a"})->answer->status), Contains("no process of rank 2"));
  const uint64_t process = store.Attach("pid 7 on a").process;
  CHECK(Put(store, process, {1, "b"}, 4).ok());
  const auto asked = Ask(store, {1, "a"});
  const auto patient = Ask(store, {1, "a"}, true);
  store.Detach(process);
  REQUIRE(asked->answer.has_value());
  CHECK(absl::IsUnavailable(asked->answer->status));
  CHECK_THAT(Text(asked->answer->status), Contains("rank 2 (pid 7 on a) is gone"));
  CHECK_FALSE(patient->answer.has_value());
  CHECK(absl::IsUnavailable(Ask(store, {1, "b"})->answer->status));  // it went with the process
  const uint64_t next = store.Attach("pid 8 on a").process;
  store.Detach(process);  // a late hang-up of the first one
  CHECK(absl::IsFailedPrecondition(Put(store, process, {1, "a"}, 4)));
  CHECK(Put(store, next, {1, "a"}, 4).ok());
  CHECK(patient->answer->object != nullptr);
}

TEST_CASE("a rank that goes on tells those that wait, and keeps what it says", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2)});
  const uint64_t process = store.Attach("pid 7 on a").process;
  CHECK(store.Advance(process, 5, {}, "").ok());
  CHECK(Put(store, process, {5, "done"}, 4).ok());
  CHECK(Put(store, process, {5, "sum"}, 4).ok());
  const auto asked = Ask(store, {5, "a"});
  CHECK(store.Advance(process, 8, {"done"}, "rank 1 is gone").ok());
  CHECK(absl::IsAborted(asked->answer->status));
  CHECK(asked->answer->group == 8);
  CHECK_THAT(Text(asked->answer->status),
             Contains("rank 2 (pid 7 on a) has gone on to group 8: rank 1 is gone"));
  CHECK(absl::IsAborted(Ask(store, {5, "sum"})->answer->status));
  CHECK(absl::IsAborted(Put(store, process, {5, "late"}, 4)));
  CHECK(absl::IsInvalidArgument(store.Advance(process, 8, {}, "")));
  store.Detach(process);
  CHECK(Ask(store, {5, "done"})->answer->object != nullptr);
  const ObjectStore::Attached next = store.Attach("pid 8 on a");
  CHECK(next.group == 8);
  CHECK(store.Advance(next.process, 9, {}, "").ok());
  CHECK(absl::IsAborted(Ask(store, {5, "done"})->answer->status));
}

TEST_CASE("objects are bounded, and what is dropped makes room", "[objects]") {
  ObjectStore store({.rank = TrainerRank(2), .bytes_max = 10});
  const uint64_t process = store.Attach("pid 7 on a").process;
  CHECK(Put(store, process, {1, "a"}, 6).ok());
  const Status over = Put(store, process, {1, "b"}, 5);
  CHECK(absl::IsResourceExhausted(over));
  CHECK_THAT(Text(over), Contains("'b' of group 1 has 5 bytes, and rank 2 has put 6 before: "
                                  "expected at most 10 in all"));
  CHECK(Put(store, process, {1, "b"}, 4).ok());
  CHECK(absl::IsResourceExhausted(Put(store, process, {1, "c"}, ~uint64_t{0} - 3)));
  CHECK(store.Advance(process, 2, {}, "").ok());
  CHECK(Put(store, process, {2, "a"}, 5).ok());
  CHECK(Put(store, process, {2, "a"}, 5).ok());  // again
  CHECK(Put(store, process, {2, "a"}, 5, 8).code() == absl::StatusCode::kAlreadyExists);
  CHECK(Put(store, process, {2, "b"}, 5).ok());
  CHECK(store.Reserve(process, {2, std::string(65, 'n')}, 0).code() ==
        absl::StatusCode::kInvalidArgument);
  const auto waits = Ask(store, {3, "a"}, true);
  store.Stop();
  CHECK(absl::IsUnavailable(waits->answer->status));
}

}  // namespace dws
