#include "common/transport/fabric/fabric_host.h"

#include <catch2/catch.hpp>
#include <chrono>
#include <string>
#include <vector>

#include "common/transport/fabric/fabric_api.h"
#include "common/transport/fabric/fabric_reader.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;
using std::chrono::seconds;

class SetClock final : public Clock {
 public:
  TimePoint Now() const override { return now_; }
  void Advance(Duration by) { now_ += by; }

 private:
  TimePoint now_ = TimePoint(std::chrono::hours(1));
};

FabricHost::Options OverTcp() {
  return {.choice = {.on = true, .only = FabricProvider::kTcp},
          .source = "127.0.0.1",
          .lease = seconds(60)};
}

bool Installed() {
  const auto api = FabricApi::Load();
  if (!api.ok()) WARN("skipped: " << Message(api.status()));
  return api.ok();
}

struct Bytes {
  std::shared_ptr<std::vector<std::byte>> bytes;
  std::weak_ptr<std::vector<std::byte>> kept;

  explicit Bytes(std::byte value)
      : bytes(std::make_shared<std::vector<std::byte>>(size_t{1} << 20, value)), kept(bytes) {}
  FabricHost::Memory As(uint64_t id) const { return {.id = id, .bytes = *bytes, .keeper = bytes}; }
};

// The first byte of what is lent.
Result<std::byte> Read(const RemoteRegion& region) {
  std::vector<std::byte> got(4096);
  DWS_ASSIGN_OR_RETURN(const FabricApiPtr api, FabricApi::Load());
  DWS_ASSIGN_OR_RETURN(const auto reader,
                       FabricReader::Connect(api, region, {.local = {got}, .timeout = seconds(2)}));
  DWS_RETURN_IF_ERROR(reader->Start({.offset = 0, .to = got, .tag = 7}));
  DWS_RETURN_IF_ERROR(reader->Wait().status());
  return got[0];
}

TEST_CASE("a sender lends nothing unless it is told to", "[fabric]") {
  SetClock clock;
  FabricHost off({.choice = {}, .lease = seconds(60)}, clock);
  CHECK(off.Text() == "off");
  const Bytes bytes(std::byte{1});
  const auto refused = off.Lend(bytes.As(1));
  CHECK(absl::IsFailedPrecondition(refused.status()));
  CHECK(bytes.bytes.use_count() == 1);
}

TEST_CASE("a host without adapters says so and lends nothing by itself", "[fabric]") {
  if (!Installed()) return;
  SetClock clock;
  // An address that no adapter has.
  FabricHost automatic({.choice = {.on = true}, .source = "198.51.100.7", .lease = seconds(60)},
                       clock);
  if (automatic.Text() != "efa") {
    CHECK_THAT(automatic.Text(), Contains("off: ") && Contains("no provider verbs"));
    const Bytes bytes(std::byte{1});
    const auto refused = automatic.Lend(bytes.As(1));
    REQUIRE(absl::IsFailedPrecondition(refused.status()));
    CHECK_THAT(std::string(Message(refused.status())), Contains("the sender's --fabric is off: "));
  }
}

TEST_CASE("a loan lasts as long as somebody asks for it", "[fabric]") {
  if (!Installed()) return;
  SetClock clock;
  FabricHost host(OverTcp(), clock);
  CHECK(host.Text() == "tcp");
  Bytes first(std::byte{1});
  const auto lent = host.Lend(first.As(1));
  INFO(ToString(lent.status()));
  REQUIRE(lent.ok());
  CHECK(lent->lease == seconds(60));
  CHECK_THAT(host.Text(), Contains("tcp 127.0.0.1 (lo), lent"));
  CHECK(*Read(lent->region) == std::byte{1});

  clock.Advance(seconds(50));
  host.EndUnused();
  const auto again = host.Lend(first.As(1));
  REQUIRE(again.ok());
  CHECK(again->region.key == lent->region.key);
  clock.Advance(seconds(50));
  host.EndUnused();
  CHECK(*Read(lent->region) == std::byte{1});
  first.bytes = nullptr;
  CHECK_FALSE(first.kept.expired());
  clock.Advance(seconds(11));
  host.EndUnused();
  CHECK(first.kept.expired());
  CHECK(host.Text() == "tcp");
  CHECK_FALSE(Read(lent->region).ok());
}

TEST_CASE("a new snapshot ends the loan of the old one", "[fabric]") {
  if (!Installed()) return;
  SetClock clock;
  FabricHost host(OverTcp(), clock);
  Bytes first(std::byte{1});
  const auto old = host.Lend(first.As(1));
  REQUIRE(old.ok());
  first.bytes = nullptr;
  const Bytes second(std::byte{2});
  SECTION("when it is lent") {
    const auto lent = host.Lend(second.As(2));
    REQUIRE(lent.ok());
    CHECK(lent->region.key != old->region.key);
    CHECK(*Read(lent->region) == std::byte{2});
  }
  SECTION("when it is made") {
    host.EndOthers(1);
    CHECK_FALSE(first.kept.expired());
    host.EndOthers(2);
  }
  CHECK(first.kept.expired());
  // The old key reads nothing, wherever it is tried.
  CHECK_FALSE(Read(old->region).ok());
}

}  // namespace
}  // namespace dws
