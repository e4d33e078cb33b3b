// Names, seals, manifests, checked files and chains of versions in a shared directory.
#include <catch2/catch.hpp>
#include <memory>
#include <string>
#include <vector>

#include "common/model/limits.h"
#include "common/transport/shared_fs/file_writer.h"
#include "common/transport/shared_fs/verified_file.h"
#include "common/transport/shared_fs/version_set.h"
#include "tests/fakes/fault_file_system.h"

namespace dws::shared {
namespace {

using Catch::Matchers::Contains;

Key KeyOf(std::string_view text) {
  const ByteSpan bytes = AsBytes(text);
  return {.bytes = {bytes.begin(), bytes.end()}};
}

std::string Hex(const Sha256Digest& digest) {
  std::string text;
  for (const std::byte byte : digest) text += fmt::format("{:02x}", static_cast<unsigned>(byte));
  return text;
}

FileEntry Entry(std::string_view name) {
  return {.name = std::string(name), .size_bytes = 3, .piece_bytes = 2, .pieces = {{}, {}}};
}

// Version `version` with a delta from `base` (0: none), and full tensors if it is an anchor.
Manifest Made(uint64_t version, uint64_t base, bool anchor, uint64_t epoch = 1) {
  Manifest manifest{.job_id = "job",
                    .stream = {.incarnation = 7, .id_hi = 8, .id_lo = 9},
                    .trainer_rank = TrainerRank(3),
                    .name = {.version = WeightVersion(version), .epoch = RankEpoch(epoch)},
                    .welcome = Entry(WelcomeName(RankEpoch(epoch)))};
  manifest.files.push_back(Entry(kDescriptionName));
  if (base != 0) {
    manifest.base = WeightVersion(base);
    manifest.files.push_back(Entry(kDeltaName));
  }
  if (anchor) {
    manifest.files.push_back(Entry(kFullName));
    manifest.files.push_back(Entry(kFullIndexName));
  }
  return manifest;
}

ManifestPtr Make(uint64_t version, uint64_t base, bool anchor, uint64_t epoch = 1) {
  return std::make_shared<const Manifest>(Made(version, base, anchor, epoch));
}

std::vector<uint64_t> Numbers(const std::vector<WeightVersion>& versions) {
  std::vector<uint64_t> numbers;
  for (const WeightVersion version : versions) numbers.push_back(version.value());
  return numbers;
}

}  // namespace

TEST_CASE("names are parsed into what they were made from and other names are refused",
          "[shared_fs]") {
  const StreamId stream{.incarnation = 42, .id_hi = 0xABCDEF, .id_lo = 1};
  CHECK(StreamName(stream) == "stream-00000000000000000042-0000000000abcdef0000000000000001");
  CHECK(ParseStreamName(StreamName(stream)) == stream);
  const VersionName version{.version = WeightVersion(UINT64_MAX), .epoch = RankEpoch(5)};
  CHECK(VersionFolderName(version) == "v18446744073709551615-00000000000000000005");
  CHECK(ParseVersionFolderName(VersionFolderName(version)) == version);
  CHECK(ParseWelcomeName(WelcomeName(RankEpoch(6))) == RankEpoch(6));
  CHECK(RankName(TrainerRank(3)) == "rank-00003");
  for (const char* name : {"", "v", "v1-1", "v00000000000000000001-0000000000000000000x",
                           "v00000000000000000001-00000000000000000001.tmp",
                           "v99999999999999999999-00000000000000000001", "stream-1-2",
                           "v-0000000000000000001-00000000000000000001"}) {
    CAPTURE(name);
    CHECK_FALSE(ParseVersionFolderName(name).has_value());
    CHECK_FALSE(ParseStreamName(name).has_value());
  }
}

TEST_CASE("an escaped id is always one plain file name", "[shared_fs]") {
  CHECK(*EscapeId("engine-0.a_b") == "engine-0.a_b");
  CHECK(*EscapeId("../x y") == "%2E.%2Fx%20y");
  CHECK(*EscapeId("..") == "%2E.");
  // Without this it would be taken for a file that is being written.
  CHECK(*EscapeId("a.tmp.tmp") == "a.tmp%2Etmp");
  CHECK(*EscapeId(".tmp") == "%2Etmp");
  CHECK(absl::IsInvalidArgument(EscapeId("").status()));
  CHECK(absl::IsInvalidArgument(EscapeId(std::string(100, '/')).status()));
}

TEST_CASE("SHA-256 and its HMAC give the test vectors of the standards", "[shared_fs]") {
  // FIPS 180-4 and RFC 4231, case 2.
  CHECK(Hex(Sha256Of(AsBytes("abc"))) ==
        "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad");
  CHECK(Hex(HmacSha256(AsBytes("Jefe"), AsBytes("what do ya want for nothing?"))) ==
        "5bdcc146bf60754e6a042426089575c75a003f089d2739839dec58b964ec3843");
}

TEST_CASE("a sealed file with any byte changed or cut off is refused", "[shared_fs]") {
  const Key key = GENERATE(Key{}, Key{.bytes = std::vector<std::byte>(16, std::byte{7})});
  const std::vector<std::byte> whole = Seal(SealedKind::kManifest, "message", key);
  CHECK(*Unseal(SealedKind::kManifest, whole, key, "f") == "message");
  for (size_t i = 0; i < whole.size(); ++i) {
    std::vector<std::byte> changed = whole;
    changed[i] ^= std::byte{1};
    CHECK_FALSE(Unseal(SealedKind::kManifest, changed, key, "f").ok());
    CHECK_FALSE(Unseal(SealedKind::kManifest, ByteSpan(whole).first(i), key, "f").ok());
  }
  CHECK_FALSE(Unseal(SealedKind::kReport, whole, key, "f").ok());
  CHECK_FALSE(Unseal(SealedKind::kManifest, whole, KeyOf("another key, long"), "f").ok());
}

TEST_CASE("a key that is too short is refused", "[shared_fs]") {
  FaultFileSystem files;
  const auto put = [&](std::string_view text) { files.SetContent("k", KeyOf(text).bytes); };
  put("0123456789abcdef\n");
  CHECK(LoadKey(files, "k")->bytes.size() == 16);
  put("short\n");
  CHECK_THAT(ToString(LoadKey(files, "k").status()), Contains("at least 16"));
  CHECK(absl::IsNotFound(LoadKey(files, "none").status()));
}

TEST_CASE("a manifest is read as it was written and an inconsistent one is refused",
          "[shared_fs]") {
  const Manifest manifest = Made(12, 11, true);
  const auto parsed = ParseManifest(SerializeManifest(manifest, {}), {}, "m");
  REQUIRE(parsed.ok());
  CHECK(*parsed == manifest);
  const auto refusal = [](const Manifest& made) {
    return ToString(ParseManifest(SerializeManifest(made, {}), {}, "m").status());
  };
  Manifest none = Made(12, 11, false);
  none.files.pop_back();
  CHECK_THAT(refusal(none), Contains("a delta without its base, or the other way round"));
  none.base.reset();
  const auto digests = ParseManifest(SerializeManifest(none, {}), {}, "m");
  REQUIRE(digests.ok());
  CHECK(digests->is_base());
  CHECK_FALSE(manifest.is_base());
  CHECK_THAT(refusal(Made(12, 12, false)), Contains("has the base 12"));
  Manifest twice = manifest;
  twice.files.push_back(twice.files[0]);
  CHECK_THAT(refusal(twice), Contains("listed twice"));
  Manifest outside = manifest;
  outside.files[0].name = "../../etc/passwd";
  CHECK_THAT(refusal(outside), Contains("is unknown"));
  Manifest pieces = manifest;
  pieces.files[0].size_bytes = 5;
  CHECK_THAT(refusal(pieces), Contains("bytes of SHA-256"));
}

TEST_CASE("any range of a file is read and checked without the rest", "[shared_fs]") {
  FaultFileSystem files;
  std::vector<std::byte> bytes(1000);
  for (size_t i = 0; i < bytes.size(); ++i) bytes[i] = static_cast<std::byte>(i * 7);
  auto writer = FileWriter::Create(files, "d", "full", 64);
  REQUIRE(writer.ok());
  for (size_t at = 0; at < bytes.size(); at += 100) {
    REQUIRE(writer->Append(ByteSpan(bytes).subspan(at, 100)).ok());
  }
  CHECK(files.Content("d/full").empty());
  const auto entry = writer->Finish();
  REQUIRE(entry.ok());
  CHECK(entry->pieces.size() == 16);
  std::vector<std::byte> damaged = bytes;
  damaged[640] ^= std::byte{1};
  files.SetContent("d/full", damaged);
  auto file = VerifiedFile::Open(files, "d", *entry);
  REQUIRE(file.ok());
  std::vector<std::byte> buffer;
  const auto range = file->Read(70, 300, buffer);
  REQUIRE(range.ok());
  CHECK(std::equal(range->begin(), range->end(), bytes.begin() + 70));
  CHECK(absl::IsDataLoss(file->Read(639, 2, buffer).status()));
  CHECK(file->Read(704, 296, buffer).ok());
  CHECK(absl::IsDataLoss(file->Read(704, 297, buffer).status()));
  CHECK(file->Read(0, 0, buffer)->empty());
}

TEST_CASE("a file that is not finished is removed with its writer", "[shared_fs]") {
  FaultFileSystem files;
  const bool renaming_fails = GENERATE(false, true);
  {
    auto writer = FileWriter::Create(files, "d", "full", 64);
    REQUIRE(writer.ok());
    FileWriter moved = *std::move(writer);
    REQUIRE(moved.Append(AsBytes("text")).ok());
    CHECK(*files.List("d") == std::vector<std::string>{"full.tmp"});
    files.FailOperation(2, UnavailableError("no"));  // after its sync
    if (renaming_fails) CHECK_FALSE(moved.Finish().ok());
  }
  CHECK(files.List("d")->empty());
}

TEST_CASE("versions are reached from anchors by deltas that follow each other", "[shared_fs]") {
  VersionSet versions;
  for (const ManifestPtr& manifest : {Make(2, 1, false), Make(3, 0, true), Make(4, 3, false),
                                      Make(5, 4, true), Make(6, 5, false), Make(9, 8, false)}) {
    versions.Put(manifest);
  }
  CHECK(Numbers(versions.Reachable(10)) == std::vector<uint64_t>{3, 4, 5, 6});
  CHECK(Numbers(versions.Reachable(2)) == std::vector<uint64_t>{5, 6});
  CHECK(versions.Chain(WeightVersion(3), WeightVersion(6))->size() == 3);
  CHECK(absl::IsAborted(versions.Chain(WeightVersion(1), WeightVersion(6)).status()));
  CHECK(absl::IsAborted(versions.Chain(WeightVersion(6), WeightVersion(9)).status()));
  CHECK(absl::IsAborted(versions.Chain(WeightVersion(6), WeightVersion(6)).status()));
  const auto path = versions.FromAnchor(WeightVersion(6));
  REQUIRE(path.ok());
  CHECK(path->anchor->name.version == WeightVersion(5));
  CHECK(path->deltas.size() == 1);
  CHECK(versions.FromAnchor(WeightVersion(5))->deltas.empty());
  CHECK(absl::IsAborted(versions.FromAnchor(WeightVersion(9)).status()));
  // A restarted sender published version 6 again: its manifest replaces the old one.
  versions.Put(Make(6, 0, true, 2));
  CHECK(versions.FromAnchor(WeightVersion(6))->anchor->name.epoch == RankEpoch(2));
  CHECK(absl::IsAborted(versions.Chain(WeightVersion(5), WeightVersion(6)).status()));
  CHECK(Numbers(versions.Reachable(10)) == std::vector<uint64_t>{3, 4, 5, 6});
  // The next restarted sender has version 4 and none above, so readers have none above either.
  versions.Put(Make(4, 0, true, 3));
  CHECK(Numbers(versions.Reachable(10)) == std::vector<uint64_t>{3, 4});
  versions.Put(Make(7, 4, false, 3));
  CHECK(Numbers(versions.Reachable(10)) == std::vector<uint64_t>{3, 4, 5, 6, 7});
}

TEST_CASE("versions after digests only are offered and have no full tensors", "[shared_fs]") {
  VersionSet versions;
  for (const ManifestPtr& manifest : {Make(1, 0, false), Make(2, 1, false), Make(4, 2, false)}) {
    versions.Put(manifest);
  }
  CHECK(Numbers(versions.Reachable(10)) == std::vector<uint64_t>{1, 2, 4});
  CHECK(versions.Chain(WeightVersion(1), WeightVersion(4))->size() == 2);
  CHECK(versions.NewestAnchor() == nullptr);
  for (const uint64_t version : {1, 4}) {
    const Status lacking = versions.FromAnchor(WeightVersion(version)).status();
    CHECK(absl::IsFailedPrecondition(lacking));
    CHECK_THAT(ToString(lacking), Contains("there are digests only of version 1"));
  }
  versions.Put(Make(2, 1, true));
  CHECK(versions.FromAnchor(WeightVersion(4))->anchor->name.version == WeightVersion(2));
  CHECK(absl::IsFailedPrecondition(versions.FromAnchor(WeightVersion(1)).status()));
}

}  // namespace dws::shared
