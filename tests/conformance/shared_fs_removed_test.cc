// Somebody removes what a sender has published to a shared directory: the sender notices, and makes
// it good once.
#include <catch2/catch.hpp>

#include "tests/conformance/shared_directory.h"
#include "tests/fakes/log_lines.h"

namespace dws {

TEST_CASE("versions whose files somebody removed are published again", "[shared_fs]") {
  const bool from_base = GENERATE(false, true);
  Directory directory(32, {}, from_base);
  const uint64_t first_anchors = from_base ? 0 : 1;
  for (uint64_t version = 1; version <= 4; ++version) REQUIRE(directory.Publish(version).ok());
  const uint64_t removed = GENERATE(1, 3, 4);
  const std::string fault =
      GENERATE("folder", "manifest", "part of the manifest", "another's manifest");
  CAPTURE(from_base, removed, fault);
  REQUIRE(directory.publisher.view().anchors == first_anchors);
  directory.clock.Pass(ReachWatch::kInterval);
  REQUIRE(directory.Write().ok());
  const std::string manifest =
      fmt::format("{}/{}", directory.Folder(removed), shared::kManifestName);
  if (fault == "folder") {
    directory.Remove(removed);
  } else if (fault == "manifest") {
    REQUIRE(directory.files.Remove(manifest).ok());
  } else if (fault == "another's manifest") {
    const std::string another = fmt::format("{}/{}", directory.Folder(2), shared::kManifestName);
    directory.files.SetContent(manifest, directory.files.Content(another));
  } else {
    directory.files.SetContent(manifest, {std::byte{1}});
  }
  CHECK(directory.Offered() != std::vector<uint64_t>{1, 2, 3, 4});
  directory.clock.Pass(ReachWatch::kInterval);
  REQUIRE(directory.Write().ok());
  REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == first_anchors);  // it may be shown late
  directory.clock.Pass(ReachWatch::kAgain);
  LogLines log;
  for (int look = 0; look < 2; ++look) REQUIRE(directory.Write().ok());
  CHECK(directory.publisher.view().anchors == first_anchors + 1);
  CHECK(log.Count("shared_repair") == 1);
  REQUIRE(directory.Offered() != std::vector<uint64_t>());
  CHECK(directory.Offered().back() == 4);
  CHECK(*directory.Read(4) == directory.rank.At(4));
  REQUIRE(directory.Publish(5).ok());
  CHECK(*directory.Read(5) == directory.rank.At(5));
  // Once.
  for (int look = 0; look < 5; ++look) {
    directory.clock.Pass(ReachWatch::kInterval);
    REQUIRE(directory.Write().ok());
  }
  CHECK(directory.publisher.view().anchors == first_anchors + 1);
}

TEST_CASE("a version that its place shows late is not taken for removed", "[shared_fs]") {
  Directory directory;
  for (uint64_t version = 1; version <= 3; ++version) REQUIRE(directory.Publish(version).ok());
  directory.clock.Pass(ReachWatch::kInterval);
  const std::string manifest = fmt::format("{}/{}", directory.Folder(3), shared::kManifestName);
  const std::vector<std::byte> content = directory.files.Content(manifest);
  for (int time = 0; time < 3; ++time) {
    REQUIRE(directory.files.Remove(manifest).ok());
    for (int look = 0; look < 3; ++look) REQUIRE(directory.Write().ok());
    directory.files.SetContent(manifest, content);
    directory.clock.Pass(ReachWatch::kAgain);
    REQUIRE(directory.Write().ok());
    directory.clock.Pass(ReachWatch::kInterval);
  }
  CHECK(directory.publisher.view().anchors == 1);
}

TEST_CASE("versions published while removed ones are made good need no other full tensors",
          "[shared_fs]") {
  Directory directory;
  for (uint64_t version = 1; version <= 4; ++version) REQUIRE(directory.Publish(version).ok());
  directory.Remove(3);
  directory.clock.Pass(ReachWatch::kInterval);
  REQUIRE(directory.Write().ok());
  directory.clock.Pass(ReachWatch::kAgain);
  // Its description comes first, then full tensors.
  bool called = false;
  directory.files.BeforeOperation(2, [&] {
    called = true;
    directory.rank.Publish(5);
  });
  const int failing = GENERATE(range(0, 12));  // operation, some of the anchor and some of a delta
  CAPTURE(failing);
  if (failing > 0) {
    directory.files.FailOperation(failing, ResourceExhaustedError("no space left"));
  }
  LogLines log;
  for (int look = 0; look < 6; ++look) directory.Write().IgnoreError();
  REQUIRE(directory.Write().ok());
  CHECK(called);
  CHECK(directory.publisher.view().anchors == 2);
  if (failing == 0) CHECK(log.Count("shared_repair") == 1);  // the log leaves out many repetitions
  CHECK(directory.publisher.view().deltas == 4);
  CHECK(directory.Offered().back() == 5);
  CHECK(*directory.Read(5) == directory.rank.At(5));
}

TEST_CASE("a version removed while its full tensors are added is written again", "[shared_fs]") {
  const int operation = GENERATE(range(1, 30));
  CAPTURE(operation);
  Directory directory(2);
  for (uint64_t version = 1; version <= 2; ++version) REQUIRE(directory.Publish(version).ok());
  directory.files.FailOperation(operation, NotFoundError("no such folder"));
  if (!directory.Publish(3).ok()) {
    directory.Remove(3);
    REQUIRE(directory.Write().ok());
  }
  CHECK(directory.publisher.view().anchors == 2);
  for (const std::string_view name : {shared::kDescriptionName, shared::kDeltaName}) {
    CHECK(directory.files.OpenForRead(fmt::format("{}/{}", directory.Folder(3), name)).ok());
  }
  CHECK(*directory.Read(3) == directory.rank.At(3));
}

TEST_CASE("what a place does not answer for is not taken for removed", "[shared_fs]") {
  Directory directory;
  for (uint64_t version = 1; version <= 3; ++version) REQUIRE(directory.Publish(version).ok());
  const auto manifest = [&](uint64_t version) {
    return fmt::format("{}/{}", directory.Folder(version), shared::kManifestName);
  };
  // A damaged one of another version does not hide that.
  if (GENERATE(false, true)) directory.files.SetContent(manifest(9), {});
  directory.files.FailReads(manifest(3), UnavailableError("no answer"));
  const auto look = [&] {
    for (int round = 0; round < 4; ++round) {
      directory.clock.Pass(ReachWatch::kInterval);
      REQUIRE(directory.Write().ok());
    }
  };
  directory.clock.Pass(ReachWatch::kInterval);
  for (int attempt = 0; attempt < 3; ++attempt) {  // each fails, so that the sender is not ready
    CHECK_THAT(ToString(directory.Write()),
               Catch::Matchers::Contains("version 3 is not available"));
  }
  CHECK(directory.publisher.view().anchors == 1);
  directory.files.FailReads(manifest(3), OkStatus());
  look();
  CHECK(directory.publisher.view().anchors == 1);
  // Somebody's copy, which is of no use, hides no version that was removed.
  directory.files.SetContent(manifest(8), directory.files.Content(manifest(1)));
  REQUIRE(directory.files.Remove(manifest(2)).ok());
  look();
  CHECK(directory.publisher.view().anchors == 2);
  CHECK(*directory.Read(3) == directory.rank.At(3));
}

TEST_CASE("a receiver names a version to which nothing leads", "[shared_fs]") {
  Directory directory;
  for (uint64_t version = 1; version <= 4; ++version) REQUIRE(directory.Publish(version).ok());
  SharedSource source = directory.Source();
  CHECK(source.Look(std::nullopt)->trouble.ok());
  directory.Remove(3);
  const auto offer = source.Look(std::nullopt);
  CHECK(offer->versions.back() == WeightVersion(2));
  CHECK(Message(offer->trouble) == "version 4 cannot be reached: version 3 is not available");
}

}  // namespace dws
