// A stream that begins in a shared directory with digests only, for receivers that have loaded the
// same checkpoint: full tensors are written when a receiver asks for them, and then once.
#include <catch2/catch.hpp>

#include "tests/conformance/follower.h"
#include "tests/conformance/shared_directory.h"
#include "tests/conformance/transports.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

// A report of a receiver that cannot reach `version` without full tensors.
v1::SharedReport Lacking(uint64_t sequence, uint64_t version) {
  v1::SharedReport report;
  report.set_session(1);
  report.set_sequence(sequence);
  report.set_lacks_full_of(version);
  return report;
}

bool HasFull(Directory& directory, uint64_t version) {
  const auto names = directory.files.List(directory.Folder(version));
  return names.ok() && std::find(names->begin(), names->end(), "full") != names->end();
}

}  // namespace

TEST_CASE("a stream begins with digests and full tensors come once when they are asked for",
          "[shared_fs]") {
  Directory directory(32, {}, true);
  directory.Leave(Lacking(1, 1));  // older than this sender
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{1, 2});
  CHECK_FALSE(HasFull(directory, 1));
  CHECK(directory.publisher.view().bases == 1);
  CHECK(directory.publisher.view().deltas == 1);
  CHECK(directory.publisher.view().bytes <
        directory.rank.layout().size_bytes() / 4);  // digests, and one delta
  CHECK(absl::IsFailedPrecondition(directory.Read(1).status()));
  CHECK(absl::IsFailedPrecondition(directory.Read(2).status()));
  CHECK(directory.publisher.view().anchors == 0);

  directory.Leave(Lacking(2, 1));
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(HasFull(directory, 2));
  CHECK(*directory.Read(2) == directory.rank.At(2));
  // The requested tensors are there; the receiver has not committed the version yet.
  directory.Leave(Lacking(3, 1));
  REQUIRE(directory.Publish(3).ok());
  directory.Leave(Lacking(4, 2));
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(*directory.Read(3) == directory.rank.At(3));
  v1::SharedReport committed = Lacking(5, 3);
  committed.set_committed_version(3);
  directory.Leave(std::move(committed));
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 1);
}

TEST_CASE("full tensors that are asked for while versions are published are added to one of them",
          "[shared_fs]") {
  Directory directory(32, {}, true);
  directory.Leave(Lacking(1, 1));
  REQUIRE(directory.Publish(1).ok());
  directory.Leave(Lacking(2, 1));
  REQUIRE(directory.Publish(2).ok());
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(*directory.Read(2) == directory.rank.At(2));
}

TEST_CASE(
    "versions published while the full tensors that were asked for are written need no others",
    "[shared_fs]") {
  Directory directory(32, {}, true);
  directory.Leave(Lacking(1, 1));
  REQUIRE(directory.Publish(1).ok());
  directory.Leave(Lacking(2, 1));
  // Its description comes first, then full tensors.
  bool called = false;
  directory.files.BeforeOperation(2, [&] {
    called = true;
    directory.rank.Publish(2);
  });
  const bool fails = GENERATE(false, true);
  if (fails) directory.files.FailOperation(3, ResourceExhaustedError("no space left"));
  directory.publisher.Offer(directory.rank.state());
  CHECK(directory.publisher.Step().ok() == !fails);
  CHECK(called);
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(directory.publisher.view().deltas == 1);
  CHECK(directory.Offered() == std::vector<uint64_t>{1, 2});
  CHECK(*directory.Read(2) == directory.rank.At(2));
}

TEST_CASE("a receiver that asks without reason gets full tensors rarely", "[shared_fs]") {
  Directory directory(64, {}, true);
  directory.Leave(Lacking(1, 1));
  REQUIRE(directory.Publish(1).ok());
  directory.Leave(Lacking(2, UINT64_MAX));  // it is not there
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 0);
  for (uint64_t version = 2; version <= 40; ++version) {
    directory.Leave(Lacking(version + 1, version));
    REQUIRE(directory.Publish(version).ok());
    directory.clock.Pass(std::chrono::seconds(2));
  }
  CHECK(directory.publisher.view().anchors >= 3);
  CHECK(directory.publisher.view().anchors <= 5);
}

TEST_CASE("a failed write of the digests does not become full tensors", "[shared_fs]") {
  for (int operation = 1; operation <= 12; ++operation) {
    CAPTURE(operation);
    Directory directory(32, {}, true);
    directory.files.FailOperation(operation, ResourceExhaustedError("no space left"));
    directory.Publish(1).IgnoreError();
    REQUIRE(directory.Write().ok());
    CHECK(directory.Offered() == std::vector<uint64_t>{1});
    CHECK(directory.publisher.view().bases == 1);
    CHECK_FALSE(HasFull(directory, 1));
  }
}

TEST_CASE("a stream begins with the digests of its first version only", "[shared_fs]") {
  Directory directory(32, {}, true);
  SECTION("also if the trainer is ahead of the directory") {
    directory.rank.Publish(5);
    REQUIRE(directory.Publish(6).ok());
    CHECK(directory.publisher.view().anchors == 0);
    CHECK(directory.publisher.view().bases == 1);
    CHECK(directory.publisher.view().deltas == 1);
    CHECK(directory.Offered() == std::vector<uint64_t>{5, 6});
  }
  SECTION("not with what a restarted sender publishes into an empty folder") {
    directory.rank.Register(directory.rank.state()->stream, RankEpoch(2));
    REQUIRE(directory.Publish(7).ok());
    CHECK(directory.publisher.view().anchors == 1);
    CHECK(directory.publisher.view().bases == 0);
    CHECK(*directory.Read(7) == directory.rank.At(7));
  }
}

TEST_CASE("a stream whose first version is no longer retained begins in full", "[shared_fs]") {
  Directory directory(32, {}, true, {.bytes_max = uint64_t{1} << 30, .versions_max = 2});
  for (uint64_t version = 1; version <= 2; ++version) directory.rank.Publish(version);
  REQUIRE(directory.Publish(3).ok());
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(directory.publisher.view().bases == 0);
  CHECK(*directory.Read(3) == directory.rank.At(3));
}

TEST_CASE("a restarted sender continues the stream in full and a new stream with digests",
          "[shared_fs]") {
  Directory directory(32, {}, true);
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  const StreamId stream = directory.rank.state()->stream;
  directory.rank.Register(stream, RankEpoch(2));
  REQUIRE(directory.Publish(3).ok());  // no delta leads to it, and no receiver can have it
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(*directory.Read(3) == directory.rank.At(3));

  StreamId next = stream;
  ++next.incarnation;
  directory.rank.Register(next, RankEpoch(1));
  REQUIRE(directory.Publish(1).ok());
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(directory.publisher.view().bases == 2);
  CHECK(directory.Offered() == std::vector<uint64_t>{1});
  CHECK(shared::ListStreams(directory.files, "/root/job/rank-00000")->size() == 1);
}

TEST_CASE("a receiver with other memory says what differs and gets full tensors", "[shared_fs]") {
  Rank rank;
  SharedTransport transport(32, 64, true);
  transport.Registered(rank.state());
  rank.Publish(1);
  transport.Published();
  transport.StartReceiver();
  Follower follower(rank.layout());
  Follower::Await(transport.subscription(), 1);
  // Its report counts once it changes after this sender has seen it.
  REQUIRE(Eventually([&] {
    transport.folder().Work();
    return transport.hub().Receivers().contains("r0");
  }));
  const uint64_t slices = rank.layout().slice_count();
  CHECK_THAT(follower.Follow(transport.group(), transport.subscription(), 1),
             Contains("UNAVAILABLE") &&
                 Contains(fmt::format("{} of {} slices of the engine are not those of version 1, "
                                      "the first of tensor '{}'",
                                      slices, slices, rank.layout().tensor(RankSlice(0)).name)) &&
                 Contains("there are digests only of version 1"));
  CHECK_FALSE(follower.at().has_value());
  REQUIRE(Eventually([&] {
    transport.folder().Work();
    return transport.folder().publisher().view().anchors == 1;
  }));
  CHECK(follower.Follow(transport.group(), transport.subscription(), 1) == "full");
  CHECK(follower.weights() == rank.At(1));
  rank.Publish(2);
  transport.Published();
  CHECK(follower.Follow(transport.group(), transport.subscription(), 2) == "delta");
  transport.folder().Work();
  CHECK(transport.folder().publisher().view().anchors == 1);
}

}  // namespace dws
