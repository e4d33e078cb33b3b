// Senders of three ranks over loopback: all get each other's objects of one name and number, and
// never those of another number.
#include "sender_daemon/on_demand/objects/object_exchange.h"

#include <grpcpp/grpcpp.h>

#include <algorithm>
#include <catch2/catch.hpp>
#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "sender_daemon/on_demand/objects/object_services.h"
#include "sender_daemon/on_demand/train_service.h"
#include "tests/fakes/eventually.h"
#include "tests/fakes/temp_folder.h"
#include "tests/sender_daemon/on_demand/silent_listener.h"

namespace dws {
namespace {

using Objects = std::vector<std::string>;

constexpr uint32_t kRanks = 3;
const std::string kName = std::string(kExchangedName) + "test";

ObjectExchange::Bytes BytesOf(const std::string& text) {
  const ByteSpan bytes = AsBytes(text);
  return {bytes.begin(), bytes.end()};
}

// The sender of one rank.
class Sender {
 public:
  explicit Sender(uint32_t rank) : rank_(rank) {}
  ~Sender() { Kill(); }

  // `epoch`: above that of the process before.
  void Start(uint64_t epoch, const std::vector<std::string>& addresses) {
    OwnerLinks::Options to;
    to.job_id = "job";
    to.self = TrainerRank(rank_);
    to.addresses = addresses;
    auto links = OwnerLinks::Create(to, listener_, clock_);
    REQUIRE(links.ok());
    links_ = *std::move(links);
    exchange_ = std::make_unique<ObjectExchange>("job", TrainerRank(rank_), epoch, *links_);
    peers_ = std::make_unique<TrainPeers>("job", TrainerRank(rank_));
    train_ = std::make_unique<TrainServiceImpl>(TrainServiceImpl::Parts{.peers = *peers_});
    for_peers_ =
        std::make_unique<PeerObjectServiceImpl>("job", store_, traffic_, &exchange_->store());
    grpc::ServerBuilder builder;
    builder.AddListeningPort(addresses[rank_], grpc::InsecureServerCredentials());
    builder.RegisterService(train_.get());
    builder.RegisterService(for_peers_.get());
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }

  void Kill() {
    if (server_ == nullptr) return;
    links_->Stop();
    exchange_->Stop();
    peers_->Stop();
    server_->Shutdown(std::chrono::system_clock::now());
    server_.reset();
    exchange_.reset();
    links_.reset();
  }

  Status Begin(uint64_t number, const std::string& text, bool accepts = true) {
    return exchange_->Begin({.name = kName, .number = number}, BytesOf(text),
                            [this, accepts](const std::vector<ObjectExchange::Bytes>& objects) {
                              MutexLock lock(mutex_);
                              Objects& taken = taken_.emplace_back();
                              for (const ObjectExchange::Bytes& object : objects) {
                                taken.emplace_back(AsText(object));
                              }
                              return accepts ? OkStatus() : UnavailableError("not these");
                            });
  }
  std::vector<Objects> taken() {
    MutexLock lock(mutex_);
    return taken_;
  }
  ObjectExchange& exchange() { return *exchange_; }

 private:
  const uint32_t rank_;
  RealClock clock_;
  SilentListener listener_;
  Mutex mutex_;
  std::vector<Objects> taken_ GUARDED_BY(mutex_);
  ObjectStore store_{{.rank = TrainerRank(rank_)}};
  ObjectTraffic traffic_;
  std::unique_ptr<OwnerLinks> links_;
  std::unique_ptr<ObjectExchange> exchange_;
  std::unique_ptr<TrainPeers> peers_;
  std::unique_ptr<TrainServiceImpl> train_;
  std::unique_ptr<PeerObjectServiceImpl> for_peers_;
  std::unique_ptr<grpc::Server> server_;
};

// Three senders with sockets in a folder of their own.
struct Scene {
  TempFolder folder;
  std::vector<std::string> addresses;
  std::vector<std::unique_ptr<Sender>> senders;

  Scene() {
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      addresses.push_back(fmt::format("unix:{}/{}.sock", folder.path(), rank));
    }
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      senders.push_back(std::make_unique<Sender>(rank));
      senders.back()->Start(1, addresses);
    }
  }
  bool AllHave(size_t count) {
    return Eventually([&] {
      return std::ranges::all_of(
          senders, [count](const auto& sender) { return sender->taken().size() == count; });
    });
  }
};

TEST_CASE("all ranks get the others' objects of a number, in whatever order they come",
          "[objects]") {
  Scene scene;
  for (uint64_t number = 1; number < 4; ++number) {
    for (uint32_t i = 0; i < kRanks; ++i) {
      const uint32_t rank = (i + number) % kRanks;
      REQUIRE(scene.senders[rank]->Begin(number, fmt::format("{}/{}", rank, number)).ok());
    }
    REQUIRE(scene.AllHave(number));
    for (uint32_t rank = 0; rank < kRanks; ++rank) {
      Objects expected;
      for (uint32_t r = 0; r < kRanks; ++r) {
        expected.push_back(r == rank ? "" : fmt::format("{}/{}", r, number));
      }
      CHECK(scene.senders[rank]->taken().back() == expected);
      CHECK(scene.senders[rank]->exchange().Awaited(kName).ok());
    }
  }
}

TEST_CASE("an object of another number is not taken", "[objects]") {
  Scene scene;
  REQUIRE(scene.senders[0]->Begin(2, "0/2").ok());
  REQUIRE(scene.senders[1]->Begin(2, "1/2").ok());
  REQUIRE(scene.senders[2]->Begin(3, "2/3").ok());
  const auto waits = [&](uint32_t rank, const std::string& why) {
    return Eventually([&] {
      const Status awaited = scene.senders[rank]->exchange().Awaited(kName);
      return Message(awaited).find(why) != std::string::npos;
    });
  };
  CHECK(waits(0, "it has gone on to number 3"));
  CHECK(waits(2, "trainer rank 0"));
  CHECK(scene.senders[0]->taken().empty());
  CHECK(scene.senders[2]->taken().empty());
  // They meet at the next one.
  for (uint32_t rank = 0; rank < kRanks; ++rank) {
    REQUIRE(scene.senders[rank]->Begin(4, fmt::format("{}/4", rank)).ok());
  }
  REQUIRE(scene.AllHave(1));
  CHECK(scene.senders[2]->taken()[0] == Objects{"0/4", "1/4", ""});
  CHECK(scene.senders[0]->Begin(3, "0/3").code() == absl::StatusCode::kAborted);
  CHECK(scene.senders[0]->Begin(4, "other").code() == absl::StatusCode::kAlreadyExists);
}

TEST_CASE("a sender that starts again, or has begun again, is asked again", "[objects]") {
  Scene scene;
  for (const bool restart : {true, false}) {
    const uint64_t number = restart ? 5 : 6;
    REQUIRE(scene.senders[0]->Begin(number, "0").ok());
    REQUIRE(scene.senders[2]->Begin(number, "2").ok());
    if (restart) {
      scene.senders[1]->Kill();
      scene.senders[1]->Start(2, scene.addresses);
    } else {
      scene.senders[1]->exchange().BeginAgain();
      REQUIRE(scene.senders[1]->Begin(1, "old").ok());  // numbers may begin again, too
    }
    REQUIRE(scene.senders[1]->Begin(number, "1").ok());
    REQUIRE(scene.AllHave(restart ? 1 : 2));
    CHECK(scene.senders[0]->taken().back() == Objects{"", "1", "2"});
  }
}

TEST_CASE("objects that are not accepted are fetched again", "[objects]") {
  Scene scene;
  REQUIRE(scene.senders[0]->Begin(1, "0", /*accepts=*/false).ok());
  REQUIRE(scene.senders[1]->Begin(1, "1").ok());
  REQUIRE(scene.senders[2]->Begin(1, "2").ok());
  CHECK(Eventually([&] {
    const Status awaited = scene.senders[0]->exchange().Awaited(kName);
    return scene.senders[0]->taken().size() > 1 &&
           Message(awaited).find("not these") != std::string::npos;
  }));
  scene.senders[0]->exchange().End(kName);
  CHECK(scene.senders[0]->exchange().Awaited(kName).ok());
}

TEST_CASE("an exchange that has ended keeps no object", "[objects]") {
  Scene scene;
  ObjectExchange& exchange = scene.senders[0]->exchange();
  REQUIRE(exchange.Begin({.name = kName, .number = 7}, BytesOf("seven"), nullptr).ok());
  REQUIRE(exchange.Begin({.name = kName + "2", .number = 7}, BytesOf("2"), nullptr).ok());
  CHECK(exchange.store().counts().held_bytes == 6);
  exchange.End(kName);
  CHECK(exchange.store().counts().objects == 1);
  CHECK(exchange.store().counts().held_bytes == 1);
  // It may begin again, where it was.
  CHECK(scene.senders[0]->Begin(6, "six").ok());
}

TEST_CASE("an object that is too large is refused", "[objects]") {
  Scene scene;
  const Status large = scene.senders[0]->exchange().Begin(
      {.name = kName, .number = 1}, ObjectExchange::Bytes(limits::kExchangedBytesMax + 1), nullptr);
  CHECK(large.code() == absl::StatusCode::kResourceExhausted);
}

}  // namespace
}  // namespace dws
