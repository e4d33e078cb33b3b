// The proofs that a delta was made from the local version, and the consequences if there is none.
// Two runs from one base: ours changed layer.0, theirs layer.1, then both change layer.2. The
// checksums of theirs fit here, and what it left unchanged differs.
#include "common/formats/slime_delta/local/base_proof.h"

#include <catch2/catch.hpp>
#include <filesystem>
#include <string>
#include <vector>

#include "tests/common/formats/slime_delta/versions.h"
#include "tests/fakes/temp_folder.h"

namespace dws::slime {
namespace {

namespace fs = std::filesystem;
using Catch::Contains;

// Publishes a version with an entry for every tensor, changed or not.
void PublishAll(const std::string& folder, const Weights& before, const Weights& after,
                uint64_t version) {
  PosixFileSystem files;
  const auto writer =
      VersionWriter::Create(files, folder, {.version = version, .unchanged_too = true});
  REQUIRE(writer.ok());
  for (const auto& [name, bytes] : after) {
    auto entry = (*writer)->NewEntry(name, bytes.size());
    REQUIRE(entry.ok());
    entry->Add(before.at(name), bytes);
    REQUIRE((*writer)->Add(name, *std::move(entry)).ok());
  }
  REQUIRE((*writer)->Finish().ok());
}

struct TwoRuns {
  TwoRuns() {
    WriteBase(local, base);
    ours_at = PublishRun(ours, base, {"layer.5", "layer.0"});
    theirs_at = PublishRun(theirs, base, {"layer.5", "layer.1", "layer.2"});
    for (const uint64_t version : {1, 2}) REQUIRE(Apply(version) == "applied");
  }
  static std::string PathOf(const std::string& versions, uint64_t version) {
    return versions + "/" + VersionFolderName(version);
  }
  // Moves their version 3 to ours.
  void Append() const { fs::rename(PathOf(theirs, 3), PathOf(ours, 3)); }
  std::string Apply(uint64_t version, ProofRule rule = ProofRule::kFolder) const {
    return ApplyOnce(local, PathOf(ours, version), {.proof = rule});
  }
  BaseProof ProofOfNext() const {
    PosixFileSystem files;
    ThreadPool pool(1);
    const auto opened = LocalCheckpoint::Open(files, pool, local, {.proof = ProofRule::kNone});
    REQUIRE(opened.ok());
    const auto report = (*opened)->Apply(PathOf(ours, 3));
    INFO(report.status());
    REQUIRE(report.ok());
    return report->proof;
  }

  TempFolder folder;
  Weights base = RandomWeights(1);
  std::string local = folder.File("local");
  std::string ours = folder.File("ours");
  std::string theirs = folder.File("theirs");
  std::vector<Weights> ours_at;  // by version
  std::vector<Weights> theirs_at;
};

TEST_CASE("another run's delta is refused when the versions that were applied are gone",
          "[slime]") {
  const TwoRuns it;
  const std::string how = GENERATE("cleaned", "replaced", "the newest removed");
  INFO(how);
  const std::string aside = it.folder.File("aside");
  fs::copy(it.ours, aside, fs::copy_options::recursive);
  if (how == "cleaned") {
    for (const uint64_t version : {1, 2}) fs::remove_all(TwoRuns::PathOf(it.ours, version));
    it.Append();
  } else if (how == "replaced") {
    fs::rename(it.ours, it.folder.File("old"));
    fs::create_directories(it.ours);
    it.Append();
  } else {
    fs::remove_all(TwoRuns::PathOf(it.ours, 2));
    it.Append();
  }
  const std::string refused = it.Apply(3);
  CHECK_THAT(refused,
             Contains("FAILED_PRECONDITION") &&
                 Contains("version 000003 is a delta of version 000002, and nothing proves "
                          "that this is the version 000002 that was applied here") &&
                 Contains(it.ours + " no longer has that"));
  CHECK(Load(it.local) == it.ours_at[2]);
  CHECK(it.Apply(3) == refused);  // the same after a restart

  // A full checkpoint ends it.
  WriteBase(TwoRuns::PathOf(it.ours, 4), it.theirs_at[3]);
  CHECK(it.Apply(4) == "applied");
  CHECK(Load(it.local) == it.theirs_at[3]);
}

TEST_CASE("a delta is applied when the version that was applied is there again", "[slime]") {
  const TwoRuns it;
  const Weights third = Touched(it.ours_at[2], "layer.2");
  Publish(it.ours, it.ours_at[2], third, {.version = 3});
  const std::string aside = it.folder.File("aside");
  fs::rename(TwoRuns::PathOf(it.ours, 2), aside);
  CHECK_THAT(it.Apply(3), Contains("nothing proves"));
  fs::rename(aside, TwoRuns::PathOf(it.ours, 2));
  CHECK(it.ProofOfNext() == BaseProof::kFolder);
  CHECK(Load(it.local) == third);
}

TEST_CASE("a delta is applied without any proof only if that is wanted", "[slime]") {
  const TwoRuns it;
  for (const uint64_t version : {1, 2}) fs::remove_all(TwoRuns::PathOf(it.ours, version));
  Publish(it.ours, it.ours_at[2], Touched(it.ours_at[2], "layer.2"), {.version = 3});
  CHECK_THAT(it.Apply(3, ProofRule::kFolder), Contains("--slime-proof=none applies it"));
  CHECK(it.ProofOfNext() == BaseProof::kNone);
}

TEST_CASE("the version beside a delta suffices unless its content has to prove it", "[slime]") {
  const TwoRuns it;
  it.Append();
  CHECK_THAT(it.Apply(3, ProofRule::kContent),
             Contains("nothing proves") && Contains("states no checksum of tensor 'layer.0'") &&
                 Contains("--slime-proof=folder applies it") && !Contains("no longer has"));
  CHECK(Load(it.local) == it.ours_at[2]);
  CHECK(it.Apply(3, ProofRule::kFolder) == "applied");  // nothing tells it from one of ours
}

TEST_CASE("a delta that states the checksum of every tensor proves its base", "[slime]") {
  const TwoRuns it;
  for (const uint64_t version : {1, 2}) fs::remove_all(TwoRuns::PathOf(it.ours, version));
  const Weights third = Touched(it.ours_at[2], "layer.2");
  PublishAll(it.ours, it.ours_at[2], third, 3);
  CHECK(it.ProofOfNext() == BaseProof::kChecksums);
  CHECK(Load(it.local) == third);
}

TEST_CASE("another run's delta that states the checksum of every tensor is refused by them",
          "[slime]") {
  const TwoRuns it;
  PublishAll(it.ours, it.theirs_at[2], it.theirs_at[3], 3);
  CHECK_THAT(it.Apply(3, ProofRule::kNone),
             Contains("FAILED_PRECONDITION") && (Contains("layer.0") || Contains("layer.1")));
  CHECK(Load(it.local) == it.ours_at[2]);
}

TEST_CASE("a dws-sender's stream proves the base of a delta whose base is gone", "[slime]") {
  const TempFolder folder;
  const std::string local = folder.File("local");
  const std::string versions = folder.File("versions");
  const Weights base = RandomWeights(1);
  WriteBase(local, base);
  const VersionWriteOptions first{.version = 1, .extra = {{kStreamKey, "s"}}};
  const Weights after = Touched(base, "layer.0");
  REQUIRE(ApplyOnce(local, Publish(versions, base, after, first)) == "applied");
  fs::remove_all(TwoRuns::PathOf(versions, 1));
  const VersionWriteOptions second{.version = 2, .extra = {{kStreamKey, "s"}}};
  const std::string next = Publish(versions, after, Touched(after, "layer.1"), second);
  CHECK(ApplyOnce(local, next, {.proof = ProofRule::kContent}) == "applied");
}

TEST_CASE("rules and proofs have names", "[slime]") {
  CHECK(ProofRuleNamed("content") == ProofRule::kContent);
  CHECK(ProofRuleNamed("folder") == ProofRule::kFolder);
  CHECK(ProofRuleNamed("none") == ProofRule::kNone);
  CHECK_FALSE(ProofRuleNamed("all").has_value());
  CHECK(NameOf(BaseProof::kChecksums) == "checksums");
}

}  // namespace
}  // namespace dws::slime
