// Senders that break the protocol or are refused, and how the receiver retries them.
#include <catch2/catch.hpp>

#include "receiver_daemon/transfer/grpc/sync_links.h"
#include "tests/receiver_daemon/transfer/grpc/sync_links_fixture.h"

namespace dws {

TEST_CASE("a sender that breaks the protocol is retried until it follows it", "[sync]") {
  const auto begin = [](v1::SyncDown& down) -> v1::Announce& {
    down.Clear();
    down.set_nonce(1);
    return *down.mutable_announce();
  };
  const std::vector<std::function<void(v1::SyncDown&)>> lies = {
      [](v1::SyncDown& down) {
        down.mutable_welcome()->set_trainer_rank(1);
      },  // outside a world of one
      [](v1::SyncDown& down) { down.mutable_welcome()->clear_layout(); },
      [](v1::SyncDown& down) { down.mutable_welcome()->clear_stream(); },
      [&](v1::SyncDown& down) { begin(down); },  // no welcome before it
  };
  for (const auto& lie : lies) {
    FakeSender sender;
    sender.lie = lie;
    sender.lies = 3;
    Receiver receiver(sender.address());
    receiver.links.Start();
    CHECK(receiver.Target().version == WeightVersion(5));
    CHECK(sender.Heard().size() >= 4);
    CHECK(receiver.subscription.WithoutSender() == Duration::zero());
  }
}

TEST_CASE("an announcement that breaks the protocol ends its stream and a new one is opened",
          "[sync]") {
  FakeSender sender;
  sender.descending = 2;
  Receiver receiver(sender.address());
  receiver.links.Start();
  CHECK(receiver.Target().version == WeightVersion(5));
  CHECK(sender.Heard().size() == 3);
}

TEST_CASE("a connection is dropped after a message that cannot be parsed", "[sync]") {
  FakeSender sender;
  sender.lies = 1;
  sender.lie = [](v1::SyncDown& down) {
    // A field number that this build has, with bytes that cannot be parsed.
    auto* const fields = down.GetReflection()->MutableUnknownFields(&down);
    down.Clear();
    fields->AddLengthDelimited(2, "\xff\xff\xff");
  };
  Receiver receiver(sender.address());
  receiver.links.Start();
  REQUIRE(Eventually([&] { return !sender.Heard().empty() && sender.lies == 0; }));
  receiver.clock.Jump(limits::kKeepaliveTimeout);
  CHECK(receiver.Target().version == WeightVersion(5));
}

TEST_CASE("a refused sender is reconsidered on its existing connection", "[sync]") {
  FakeSender sender;
  FakeSender twin;  // claims the same rank
  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription({sender.address(), twin.address()}, std::nullopt, changed, clock);
  SyncLinks links(
      {.addresses = {sender.address(), twin.address()}, .job_id = "job", .receiver_id = "r0"},
      subscription, clock);
  links.Start();
  const auto refused = [&] {
    const auto peers = subscription.Peers();
    for (uint32_t i = 0; i < 2; ++i) {
      const bool served_twice =
          peers[i].last_error.find("served by two senders") != std::string::npos;
      if (served_twice && peers[1 - i].trainer_rank.has_value()) return std::optional(i);
    }
    return std::optional<uint32_t>();
  };
  REQUIRE(Eventually([&] { return refused().has_value(); }));
  const uint32_t second = *refused();
  FakeSender& waits = second == 0 ? sender : twin;
  FakeSender& holds = second == 0 ? twin : sender;
  holds.Shut();
  REQUIRE(Eventually([&] { return !subscription.Peers()[1 - second].connected; }));
  REQUIRE(Eventually([&] {
    clock.Jump(std::chrono::milliseconds(100));
    const std::optional<SyncTarget> target = subscription.Target();
    return target.has_value() && target->ranks[0].sender == SenderIndex(second);
  }));
  CHECK(waits.Callers().size() == 1);
  links.Stop();
}

TEST_CASE("a sender that is refused for long is asked again over another connection", "[sync]") {
  struct Case {
    const char* reason;
    std::function<void(v1::Welcome&)> lie;
  };
  const Case refused = GENERATE(
      Case{"two trainers claim the job",
           [](v1::Welcome& welcome) { welcome.mutable_stream()->set_id_lo(99); }},
      Case{"an old trainer is running again",
           [](v1::Welcome& welcome) { welcome.mutable_stream()->set_incarnation(2); }},
      Case{"given 1 senders", [](v1::Welcome& welcome) { welcome.set_world_size(2); }},
      Case{"ahead of", [](v1::Welcome& welcome) { welcome.set_rank_epoch(UINT64_MAX); }},
      // These end their stream at once.
      Case{"the sender serves job 'other'",
           [](v1::Welcome& welcome) { welcome.set_job_id("other"); }},
      Case{"upgrade the older one", [](v1::Welcome& welcome) { welcome.set_protocol_major(99); }},
      Case{"expected a rank below it", [](v1::Welcome& welcome) { welcome.set_trainer_rank(1); }});
  INFO(refused.reason);
  FakeSender sender;
  sender.lie = [&](v1::SyncDown& down) { refused.lie(*down.mutable_welcome()); };
  sender.lies = 2;
  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription({sender.address()}, kStream, changed, clock);
  SyncLinks links({.addresses = {sender.address()}, .job_id = "job", .receiver_id = "r0"},
                  subscription, clock);
  links.Start();
  // The reason stays until the sender is accepted.
  REQUIRE(Eventually(
      [&] { return subscription.MissingSenders().find(refused.reason) != std::string::npos; }));
  bool told = true;
  REQUIRE(Eventually([&] {
    clock.Jump(std::chrono::milliseconds(100));
    const std::string missing = subscription.MissingSenders();
    const bool accepted = subscription.WithoutSender() == Duration::zero();
    told = told && (accepted || missing.find(refused.reason) != std::string::npos);
    return subscription.Target().has_value();
  }));
  CHECK(told);
  // Another sender may answer at the address, but not over the same connection.
  std::vector<std::string> callers = sender.Callers();
  CHECK(callers.size() == 3);
  std::sort(callers.begin(), callers.end());
  CHECK(std::unique(callers.begin(), callers.end()) == callers.end());
  CHECK(subscription.Peers()[0].last_error.empty());
  links.Stop();
}

TEST_CASE("a sender whose welcome is refused is told why it is", "[sync]") {
  FakeSender sender;
  StreamId newer = kStream;
  ++newer.incarnation;
  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription({sender.address()}, newer, changed, clock);
  SyncLinks links({.addresses = {sender.address()}, .job_id = "job", .receiver_id = "r0"},
                  subscription, clock);
  links.Start();
  std::optional<v1::Nack> nack;
  REQUIRE(Eventually([&] {
    for (const v1::SyncUp& up : sender.Heard()) {
      if (up.has_nack()) nack = up.nack();
    }
    return nack.has_value();
  }));
  CHECK(nack->nonce() == 2);  // of the announcement
  CHECK(nack->version() == 5);
  CHECK(nack->stream().id_lo() == kStream.id_lo);
  CHECK(nack->code() == static_cast<uint32_t>(absl::StatusCode::kFailedPrecondition));
  CHECK_THAT(nack->message(), Catch::Contains("it refuses this sender: stream") &&
                                  Catch::Contains("an old trainer is running again"));
  links.Stop();
}

TEST_CASE("a refused sender whose announcement breaks the protocol loses its stream", "[sync]") {
  FakeSender sender;
  sender.descending = 1;
  StreamId newer = kStream;
  ++newer.incarnation;
  JumpingClock clock;
  ChangeSignal changed;
  Subscription subscription({sender.address()}, newer, changed, clock);
  SyncLinks links({.addresses = {sender.address()}, .job_id = "job", .receiver_id = "r0"},
                  subscription, clock);
  links.Start();
  REQUIRE(Eventually([&] { return sender.descending == 0; }));
  REQUIRE(Eventually([&] {
    return subscription.Peers()[0].last_error.find("an old trainer") != std::string::npos;
  }));
  subscription.Forget(std::nullopt);
  REQUIRE(Eventually([&] {
    clock.Jump(std::chrono::milliseconds(100));
    const std::optional<SyncTarget> target = subscription.Target();
    return target.has_value() && target->version == WeightVersion(5);
  }));
  CHECK(sender.Callers().size() >= 2);  // a new stream was opened
  links.Stop();
}

TEST_CASE("a sender of another protocol major is refused by name", "[sync]") {
  FakeSender sender;
  sender.protocol_major = kProtocolMajor + 1;
  Receiver receiver(sender.address());
  receiver.links.Start();
  REQUIRE(Eventually([&] {
    return receiver.subscription.Peers()[0].last_error.find("upgrade the older one") !=
           std::string::npos;
  }));
  CHECK_FALSE(receiver.subscription.Target().has_value());
}

}  // namespace dws
