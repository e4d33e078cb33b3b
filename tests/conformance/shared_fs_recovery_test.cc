// How a shared directory's sender and receivers recover: from damage, full disks, receivers
// that come, go and disagree, and a sender's restart.
#include <catch2/catch.hpp>

#include "receiver_daemon/transfer/shared/shared_reporter.h"
#include "sender_daemon/shared/shared_receivers.h"
#include "tests/common/delta/old_state.h"
#include "tests/conformance/shared_directory.h"

namespace dws {
namespace {

using Catch::Matchers::Contains;

v1::SharedReport Report(uint64_t sequence, uint64_t committed, uint64_t session = 1) {
  v1::SharedReport report;
  report.set_session(session);
  report.set_sequence(sequence);
  report.set_committed_version(committed);
  return report;
}

// A report of a receiver that has found damage in `version`: its `rejections`-th refusal.
v1::SharedReport Damaged(uint64_t sequence, uint64_t version, uint64_t rejections) {
  v1::SharedReport report = Report(sequence, version - 1);
  report.set_rejections(rejections);
  report.set_rejected_version(version);
  report.set_rejected_code(static_cast<uint32_t>(absl::StatusCode::kDataLoss));
  return report;
}

std::string FolderOf(const std::string& path) { return path.substr(0, path.rfind('/')); }

}  // namespace

TEST_CASE("a receiver continues after a version was repaired", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  SharedSource source = directory.Source();
  REQUIRE(source.Look(std::nullopt).ok());
  directory.Leave(Report(1, 1));
  REQUIRE(directory.Write().ok());
  directory.clock.Pass(limits::kSharedPresenceTimeout);
  directory.Leave(Damaged(2, 2, 1));
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 2);
  // The source still knows the old manifest of version 2, from which the next deltas start.
  directory.Leave(Report(3, 2));
  REQUIRE(directory.Publish(3).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{2, 3});
  for (uint64_t version = 4; version <= 5; ++version) {
    const auto offer = source.Look(std::nullopt);
    INFO(ToString(offer.status()));
    REQUIRE(offer.ok());
    CHECK(offer->versions.back() == WeightVersion(version - 1));
    directory.Leave(Report(version, version - 1));
    REQUIRE(directory.Publish(version).ok());
  }
}

TEST_CASE("writing full tensors delays neither their version nor newer versions", "[shared_fs]") {
  Directory directory(2);
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  directory.rank.Publish(3);
  // Its description, delta and manifest; then full tensors, which begin with the next operation.
  constexpr int kDeltaOperations = 3;
  bool called = false;
  directory.files.BeforeOperation(kDeltaOperations + 1, [&] {
    called = true;
    directory.rank.Publish(4);
    directory.rank.Publish(5);
  });
  const bool fails = GENERATE(false, true);
  if (fails) {
    directory.files.FailOperation(kDeltaOperations + 2, ResourceExhaustedError("no space left"));
  }
  CHECK(directory.publisher.Step().ok() == !fails);
  CHECK(called);
  CHECK(directory.publisher.view().anchors == (fails ? 1 : 2));
  if (!fails) CHECK(directory.publisher.view().deltas == 4);
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 2);
  REQUIRE(directory.Publish(6).ok());
  CHECK(directory.publisher.view().anchors == 3);
  CHECK(directory.publisher.view().deltas == 5);
  for (uint64_t version = 1; version <= 6; ++version) {
    const auto weights = directory.Read(version);
    INFO(version << ": " << ToString(weights.status()));
    REQUIRE(weights.ok());
    CHECK(*weights == directory.rank.At(version));
  }
}

TEST_CASE("full tensors are still written after a repair before them has failed", "[shared_fs]") {
  Directory directory(2);
  directory.Leave(Report(1, 0));
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  directory.rank.Publish(3);
  directory.publisher.Offer(directory.rank.state());
  directory.files.FailOperation(
      4, ResourceExhaustedError("no space left"));  // writing the full tensors fails
  CHECK_FALSE(directory.publisher.Step().ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{1, 2, 3});
  CHECK(directory.publisher.view().anchors == 1);
  directory.Leave(Damaged(2, 3, 1));
  directory.files.FailOperation(1, ResourceExhaustedError("no space left"));
  CHECK_FALSE(directory.publisher.Step().ok());
  directory.Leave(Report(3, 3));  // the receiver no longer needs the repair
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 2);
  CHECK(*directory.Read(3) == directory.rank.At(3));
}

TEST_CASE("deltas are composed only if memory for the composition suffices", "[shared_fs]") {
  Directory directory;
  uint64_t bytes = 0;
  for (uint64_t version = 1; version <= 3; ++version) {
    REQUIRE(directory.Publish(version).ok());
    bytes += directory.files.Content(directory.Folder(version) + "/delta").size();
  }
  SharedSource source = directory.Source();
  REQUIRE(source.Look(std::nullopt).ok());
  const samples::OldState old(directory.rank.layout(), directory.rank.At(1));
  const auto compose = [&](uint64_t memory) {
    return source
        .Object(directory.rank.state()->stream, WeightVersion(3), directory.rank.layout(),
                {.base = WeightVersion(1), .slices = std::nullopt, .old = &old},
                {.folder = "/tmp",
                 .memory_bytes_max = memory,
                 .size_bytes_max = limits::kObjectBytesMax})
        .status();
  };
  CHECK(absl::IsAborted(compose(3 * bytes - 1)));
  CHECK(compose(3 * bytes).ok());
}

TEST_CASE("files missing before the newest full tensors count as retired and not as damaged",
          "[shared_fs]") {
  Directory directory(3);
  for (uint64_t version = 1; version <= 5; ++version) REQUIRE(directory.Publish(version).ok());
  SharedSource source = directory.Source();
  REQUIRE(source.Look(std::nullopt)->versions.back() == WeightVersion(5));
  const StreamId stream = directory.rank.state()->stream;
  const samples::OldState old(directory.rank.layout(), directory.rank.At(1));
  const auto fetch = [&](uint64_t base) {
    return source
        .Object(stream, WeightVersion(5), directory.rank.layout(),
                {.base = WeightVersion(base), .slices = std::nullopt, .old = &old},
                {.folder = "/tmp",
                 .memory_bytes_max = uint64_t{1} << 24,
                 .size_bytes_max = limits::kObjectBytesMax})
        .status();
  };
  REQUIRE(fetch(1).ok());
  // The manifest can still be read, as on a mount with a cache.
  for (const char* name : {"/delta", "/description"}) {
    REQUIRE(directory.files.Remove(directory.Folder(3) + name).ok());
  }
  CHECK(absl::IsAborted(fetch(2)));
  CHECK(absl::IsAborted(source.Describe(stream, WeightVersion(3)).status()));
  REQUIRE(directory.files.Remove(directory.Folder(5) + "/delta").ok());
  CHECK(absl::IsDataLoss(fetch(4)));
}

TEST_CASE("a version that cannot be written delays neither acknowledgements nor removals",
          "[shared_fs]") {
  Directory directory(3);
  directory.Leave(Report(1, 0));
  for (uint64_t version = 1; version <= 3; ++version) REQUIRE(directory.Publish(version).ok());
  directory.clock.Pass(limits::kSharedPresenceTimeout);
  directory.Leave(Report(2, 3));
  REQUIRE(directory.Publish(4).ok());  // an anchor, and the receiver needs nothing before it
  CHECK(directory.Offered() == std::vector<uint64_t>{4});

  for (uint64_t version = 5; version <= 6; ++version) REQUIRE(directory.Publish(version).ok());
  REQUIRE(directory.Publish(7).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{4, 5, 6, 7});
  directory.Leave(Report(3, 7));
  directory.files.FailOperation(1, ResourceExhaustedError("no space left"));
  CHECK_FALSE(directory.Publish(8).ok());
  CHECK(directory.hub.Receivers().at("r0").committed == WeightVersion(7));
  CHECK(directory.Offered() == std::vector<uint64_t>{7});
}

TEST_CASE("a sender that cannot write its first version removes what nobody needs first",
          "[shared_fs]") {
  Directory directory(1);
  for (uint64_t version = 1; version <= 4; ++version) REQUIRE(directory.Publish(version).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{1, 2, 3, 4});
  const std::string stream_folder = FolderOf(directory.Folder(1));
  const auto there = [&] {
    std::vector<std::string> versions;
    const std::vector<std::string> names = *directory.files.List(stream_folder);
    for (const std::string& name : names) {
      if (shared::ParseVersionFolderName(name).has_value()) versions.push_back(name);
    }
    return versions;
  };
  const std::vector<std::string> newest = {
      shared::VersionFolderName({.version = WeightVersion(4), .epoch = RankEpoch(1)})};
  const bool same_stream = GENERATE(true, false);
  const int operation = GENERATE(1, 2, 3);  // the welcome, the version's description, full tensors
  CAPTURE(same_stream, operation);
  const StreamId next{.incarnation = 2, .id_hi = 5, .id_lo = 6};
  directory.rank.Register(same_stream ? directory.rank.state()->stream : next, RankEpoch(2));
  directory.hub.Welcome(directory.rank.state());
  directory.rank.Publish(5);
  directory.files.FailOperation(operation, ResourceExhaustedError("no space left"));
  CHECK_FALSE(directory.Write().ok());
  CHECK(there().size() == 4);  // a receiver may still need each of them
  directory.clock.Pass(limits::kSharedPresenceTimeout);
  // Each attempt is of another version, and leaves nothing.
  for (const uint64_t version : {6, 7}) {
    directory.files.FailOperation(version == 6 ? operation : std::max(operation - 1, 1),
                                  ResourceExhaustedError("no space left"));
    CHECK_FALSE(directory.Publish(version).ok());
    CHECK(there() == newest);
    CHECK(directory.files.List(directory.Folder(version))->empty());
  }
  REQUIRE(directory.Publish(8).ok());
  CHECK(directory.Offered().back() == 8);
  CHECK(there().size() == (same_stream ? 1 : 0));
}

TEST_CASE("full tensors that could not be added leave no file", "[shared_fs]") {
  Directory directory(2);
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  directory.rank.Publish(3);
  const int before = directory.files.operation_count();
  directory.files.FailOperation(4, ResourceExhaustedError("no space left"));
  for (int operation = 1; !directory.Write().ok(); ++operation) {
    CAPTURE(operation);
    CHECK(*directory.files.List(directory.Folder(3)) ==
          std::vector<std::string>{"delta", "description", "manifest"});
    directory.files.FailOperation(operation, ResourceExhaustedError("no space left"));
  }
  CHECK(directory.files.operation_count() > before + 10);
  CHECK(directory.publisher.view().anchors == 2);
  CHECK(*directory.Read(3) == directory.rank.At(3));
}

TEST_CASE("a repair is retried until it works but not made for every version", "[shared_fs]") {
  Directory directory;
  directory.Leave(Report(1, 0));
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  directory.Leave(Damaged(2, 2, 1));
  const bool with_a_version = GENERATE(false, true);
  directory.files.FailOperation(1, ResourceExhaustedError("no space left"));
  CHECK_FALSE((with_a_version ? directory.Publish(3) : directory.Write()).ok());
  CHECK(directory.publisher.view().anchors == 1);
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == 2);

  // The receiver finds damage in all later versions, because its own disk is bad.
  uint64_t sequence = 2;
  for (uint64_t version = 4; version <= 40; ++version) {
    REQUIRE(directory.Publish(version).ok());
    ++sequence;
    directory.Leave(Damaged(sequence, version, sequence));
    REQUIRE(directory.Write().ok());
    directory.clock.Pass(std::chrono::seconds(2));
  }
  const uint64_t anchors = directory.publisher.view().anchors;
  CHECK(anchors >= 4);
  CHECK(anchors <= 7);
  // A due repair is not forgotten, even if no further version is published.
  directory.clock.Pass(std::chrono::minutes(10));
  ++sequence;
  directory.Leave(Damaged(sequence, 40, sequence));
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == anchors + 1);
}

TEST_CASE("a starting sender removes nothing until live receivers have had time to report",
          "[shared_fs]") {
  Directory directory(2);
  directory.Leave(Report(1, 1));  // older than this sender: the receiver may be dead
  for (uint64_t version = 1; version <= 5; ++version) REQUIRE(directory.Publish(version).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{1, 2, 3, 4, 5});
  directory.clock.Pass(limits::kSharedPresenceTimeout);
  directory.Leave(Report(2, 3));  // live, and lagging
  REQUIRE(directory.Publish(6).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{3, 4, 5, 6});
  directory.clock.Pass(limits::kSharedPresenceTimeout + std::chrono::seconds(1));
  REQUIRE(directory.Publish(7).ok());
  CHECK(directory.Offered() == std::vector<uint64_t>{7});
}

TEST_CASE("a receiver is known as long as its report file exists", "[shared_fs]") {
  Directory directory;
  const std::string folder = "/root/job/rank-00000/receivers";
  SharedReceivers receivers(directory.files, directory.hub,
                            {.job_id = "job", .rank = TrainerRank(0), .folder = folder, .key = {}},
                            [](const v1::SharedReport&, bool) {});
  for (const char* id : {"a", "b"}) {
    v1::SharedReport report = Report(1, 0);
    report.set_receiver_id(id);
    directory.Leave(std::move(report));
  }
  directory.files.SetContent(folder + "/bad", {std::byte{1}});
  receivers.Refresh();
  CHECK(receivers.known() == 2);
  REQUIRE(directory.files.Remove(folder + "/b").ok());
  receivers.Refresh();
  CHECK(receivers.known() == 1);
}

TEST_CASE("a report counts only for the trainer rank that it was written for", "[shared_fs]") {
  Directory directory;
  const shared::Key key{.bytes = std::vector<std::byte>(16, std::byte{7})};
  const std::vector<std::string> ranks = {"/root/job/rank-00000", "/root/job/rank-00001"};
  {
    ChangeSignal changed;
    const Subscription subscription(ranks, std::nullopt, changed, directory.clock);
    const auto reporter = SharedReporter::Create(
        directory.files, subscription,
        {.name = {.job_id = "job", .receiver_id = "r0"}, .rank_folders = ranks, .key = key});
    REQUIRE(reporter.ok());
    (*reporter)->Start();
    (*reporter)->Stop();
  }
  const auto known = [&](uint32_t rank) {
    SharedReceivers receivers(directory.files, directory.hub,
                              {.job_id = "job",
                               .rank = TrainerRank(rank),
                               .folder = ranks[rank] + "/receivers",
                               .key = key},
                              [](const v1::SharedReport&, bool) {});
    receivers.Refresh();
    return receivers.known();
  };
  CHECK(known(0) == 1);
  CHECK(known(1) == 1);
  // Signed correctly, but for another rank.
  directory.Move(ranks[1] + "/receivers", ranks[0] + "/receivers");
  CHECK(known(0) == 0);
}

TEST_CASE("of two receivers with one id the one that started last counts", "[shared_fs]") {
  Directory directory;
  for (uint64_t version = 1; version <= 5; ++version) REQUIRE(directory.Publish(version).ok());
  const auto after = [&](const v1::SharedReport& report) {
    directory.Leave(report);
    REQUIRE(directory.Write().ok());
    const auto receivers = directory.hub.Receivers();
    const auto found = receivers.find("r0");
    return found == receivers.end() ? 0 : found->second.nacks;
  };
  const auto rejecting = [](uint64_t sequence, uint64_t session, uint64_t rejections) {
    v1::SharedReport report = Report(sequence, 1, session);
    report.set_rejections(rejections);
    return report;
  };
  after(rejecting(1, 1, 0));
  CHECK(after(rejecting(2, 1, 1)) == 1);
  CHECK(after(rejecting(1, 2, 1)) == 2);  // a new process
  // Alternating between the two must not count the same rejections again.
  for (uint64_t sequence = 3; sequence <= 6; ++sequence) {
    CHECK(after(rejecting(sequence, 1, 1)) == 2);
    CHECK(after(rejecting(sequence, 2, 1)) == 2);
  }
  // The later one is gone, so the other counts.
  directory.clock.Pass(limits::kSharedPresenceTimeout + std::chrono::seconds(1));
  CHECK(after(rejecting(7, 1, 2)) == 3);
}

TEST_CASE("versions that no full tensors lead to are reported", "[shared_fs]") {
  Directory directory;
  REQUIRE(directory.Publish(1).ok());
  REQUIRE(directory.Publish(2).ok());
  SharedSource source = directory.Source();
  REQUIRE(source.Look(std::nullopt).ok());
  const std::vector<std::string> names = *directory.files.List(directory.Folder(1));
  for (const std::string& name : names) {
    REQUIRE(directory.files.Remove(directory.Folder(1) + "/" + name).ok());
  }
  CHECK_THAT(std::string(Message(source.Look(std::nullopt).status())),
             Contains("1 versions up to 2, but no full tensors lead to them"));
  CHECK_THAT(directory.Refusal(directory.Source()), Contains("no full tensors lead to them"));
}

}  // namespace dws
