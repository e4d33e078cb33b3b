// What a sender remembers about its receivers across restarts, and which receivers its waits await.
#include "sender_daemon/serve/receiver_memory.h"

#include <atomic>
#include <catch2/catch.hpp>
#include <memory>
#include <optional>
#include <string>

#include "common/base/bytes.h"
#include "common/model/limits.h"
#include "common/sync_state/presence_limits.h"
#include "sender_daemon/serve/receiver_hub.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/hanging_file_system.h"
#include "tests/fakes/jumping_clock.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/silent_connection.h"

namespace dws {
namespace {

// One sender process after another, with one state folder.
struct Host {
  void Start() {
    hub.emplace(
        clock, "job", Duration::zero(),
        std::make_unique<ReceiverMemory>(files, folder.path(), [] { return 1'700'000'000; }));
  }
  ConnectionId Connect(const std::string& id) {
    const auto connected = hub->Connect("job", id, std::make_shared<SilentConnection>());
    REQUIRE(connected.ok());
    return *connected;
  }
  AnnouncerState::Receiver Receiver(const std::string& id) { return hub->Receivers().at(id); }
  bool Knows(const std::string& id) { return hub->Receivers().contains(id); }

  PosixFileSystem files;
  TempFolder folder;
  JumpingClock clock;
  std::optional<ReceiverHub> hub;
};

}  // namespace

TEST_CASE("a restarted sender awaits the receivers that were connected and not those that had left",
          "[receivers]") {
  Host host;
  host.Start();
  host.Connect("stays");
  host.hub->Disconnect(host.Connect("left"));
  host.hub->Stop();
  host.Start();
  CHECK(host.Receiver("stays").awaited);
  CHECK_FALSE(host.Receiver("stays").connection.has_value());
  CHECK_FALSE(host.Receiver("left").awaited);
  const ConnectionId back = host.Connect("stays");
  CHECK_FALSE(host.Receiver("stays").awaited);
  host.hub->Disconnect(back);
  CHECK_FALSE(host.Receiver("stays").awaited);  // it left during this process: absent as usual
}

TEST_CASE("known receivers survive the kill of the sender", "[receivers]") {
  Host host;
  host.Start();
  host.Connect("r0");
  REQUIRE(Eventually([&] {
    const auto known = LoadKnownReceivers(host.files, host.folder.path());
    return known.ok() && known->size() == 1 && known->front().present;
  }));
}

TEST_CASE("a receiver that stays away is first no longer awaited and later forgotten",
          "[receivers]") {
  Host host;
  host.Start();
  host.Connect("r0");
  host.hub->Stop();
  host.Start();
  REQUIRE(host.Receiver("r0").awaited);
  host.clock.Jump(limits::kReceiverReturnWait);
  REQUIRE(Eventually([&] { return !host.Receiver("r0").awaited; }));
  CHECK(host.Knows("r0"));
  host.clock.Jump(limits::kReceiverForgottenAfter);
  REQUIRE(Eventually([&] { return !host.Knows("r0"); }));
  REQUIRE(Eventually([&] { return LoadKnownReceivers(host.files, host.folder.path())->empty(); }));
}

TEST_CASE("an awaited receiver stays awaited after another restart of the sender", "[receivers]") {
  Host host;
  host.Start();
  host.Connect("r0");
  host.hub->Stop();
  host.Start();
  host.Connect("r1");
  host.hub->Stop();
  host.Start();
  CHECK(host.Receiver("r0").awaited);
  CHECK(host.Receiver("r1").awaited);
}

TEST_CASE("an operator can make the sender forget an absent receiver but not a connected one",
          "[receivers]") {
  Host host;
  host.Start();
  host.Connect("r0");
  host.hub->Stop();
  host.Start();
  host.Connect("here");
  CHECK(absl::IsFailedPrecondition(host.hub->Forget("here")));
  CHECK(absl::IsNotFound(host.hub->Forget("nobody")));
  CHECK(host.hub->Forget("r0").ok());
  CHECK_FALSE(host.Knows("r0"));
  host.hub->Stop();
  host.Start();
  CHECK_FALSE(host.Knows("r0"));
  CHECK(host.Knows("here"));
}

TEST_CASE("a disk that hangs blocks neither keepalives nor waits", "[receivers]") {
  class Counting final : public SyncConnection {
   public:
    void WelcomeDue() override {}
    void AnnounceDue() override {}
    void KeepaliveDue() override { ++keepalives; }
    void Close(const Status&) override {}
    std::atomic<int> keepalives = 0;
  };
  PosixFileSystem disk;
  HangingFileSystem files(disk);
  TempFolder folder;
  JumpingClock clock;
  ReceiverHub hub(
      clock, "job", Duration::zero(),
      std::make_unique<ReceiverMemory>(files, folder.path(), [] { return 1'700'000'000; }));
  files.Hang();
  const auto connection = std::make_shared<Counting>();
  REQUIRE(hub.Connect("job", "r0", connection).ok());
  REQUIRE(Eventually([&] { return files.holds_replacement(); }));

  std::atomic<bool> ended = false;
  hub.AddWait({.version = WeightVersion(1),
               .condition = {},
               .deadline = clock.Now() + std::chrono::seconds(1),
               .cancelled = [] { return false; },
               .done = [&](const Status&, const WaitOutcome&) { ended = true; }});
  clock.Jump(limits::kKeepaliveInterval);
  CHECK(Eventually([&] { return connection->keepalives > 0; }));
  CHECK(Eventually([&] { return ended.load(); }));

  // Changes made meanwhile are written once the disk works again.
  REQUIRE(hub.Connect("job", "r1", connection).ok());
  files.Release();
  CHECK(Eventually([&] {
    const auto known = LoadKnownReceivers(files, folder.path());
    clock.Jump(limits::kKnownReceiversSaveInterval);
    return known.ok() && known->size() == 2;
  }));
  hub.Stop();
}

TEST_CASE("a sender starts although its file of known receivers is damaged", "[receivers]") {
  Host host;
  REQUIRE(host.files.ReplaceFile(host.folder.File("receivers.known"), AsBytes("damage")).ok());
  host.Start();
  CHECK(host.hub->Receivers().empty());
  host.Connect("r0");
  host.hub->Stop();
  host.Start();
  CHECK(host.Receiver("r0").awaited);  // written again
}

}  // namespace dws
