// inspect over every golden object, intact and damaged.
#include "tools/dwsctl/inspect/inspect_object.h"

#include <catch2/catch.hpp>
#include <fstream>
#include <map>
#include <set>

#include "common/delta/objects/object.h"
#include "tests/fakes/temp_folder.h"
#include "tests/golden/golden_cases.h"
#include "tools/dwsctl/inspect/inspect_manifest.h"

namespace dws::dwsctl {
namespace {

constexpr InspectLimits kEverything = {
    .slices = UINT64_MAX, .frames = UINT64_MAX, .blocks = UINT64_MAX, .records = UINT64_MAX};

std::string PathOf(const golden::GoldenCase& golden) {
  return "tests/golden/delta_v1/" + golden.name + ".dws";
}

struct Found {
  uint64_t problems = 0;
  std::vector<InspectItem> items;

  std::vector<ProblemItem> Problems() const {
    std::vector<ProblemItem> found;
    for (const InspectItem& item : items) {
      if (const auto* problem = std::get_if<ProblemItem>(&item)) found.push_back(*problem);
    }
    return found;
  }
};

Found Inspect(const std::string& path, const RankLayout* layout,
              const InspectLimits& limits = kEverything) {
  const auto file = ByteFile::Open(path);
  REQUIRE(file.ok());
  Found found;
  const auto problems = InspectObject(*file, layout, limits, [&found](const InspectItem& item) {
    found.items.push_back(item);
    return true;
  });
  REQUIRE(problems.ok());
  found.problems = *problems;
  REQUIRE(found.Problems().size() == found.problems);
  return found;
}

// Damage that is visible only with the weights.
const std::set<std::string> kNeedsWeights = {"class_split_count_too_large",
                                             "class_split_shift_out_of_reach",
                                             "class_split_other_classes",
                                             "class_split_padding_not_zero",
                                             "class_split_escape_wider_than_it_has_to_be",
                                             "class_split_escape_without_a_width",
                                             "digest_after_of_another_state",
                                             "digest_before_of_another_base"};
// Damage that is visible only with the layout.
const std::set<std::string> kNeedsLayout = {
    "another_layout",
    "block_outside_the_slice",
    "dense_ulp_escape_wider_than_it_has_to_be",
    "dense_ulp_escape_without_a_width",
    "position_outside_the_block",
    "slice_outside_the_layout",
};

std::vector<std::byte> ReadFile(const std::string& path) {
  const auto file = ByteFile::Open(path);
  REQUIRE(file.ok());
  return *file->Read(0, file->size_bytes());
}

void WriteFile(const std::string& path, ByteSpan bytes) {
  std::ofstream(path, std::ios::binary) << AsText(bytes);
}

}  // namespace

TEST_CASE("inspect with the layout finds all damage that is visible without weights", "[dwsctl]") {
  size_t damaged = 0;
  for (const golden::GoldenCase& golden : golden::MakeGoldenCases()) {
    INFO(golden.name);
    const bool visible = golden.outcome != "OK" && !kNeedsWeights.contains(golden.name);
    CHECK((Inspect(PathOf(golden), &golden.layout).problems > 0) == visible);
    damaged += visible ? 1 : 0;
  }
  CHECK(damaged == 25);
}

TEST_CASE("inspect without the layout finds all damage that is visible without it", "[dwsctl]") {
  for (const golden::GoldenCase& golden : golden::MakeGoldenCases()) {
    INFO(golden.name);
    const bool visible = golden.outcome != "OK" && !kNeedsWeights.contains(golden.name) &&
                         !kNeedsLayout.contains(golden.name);
    CHECK((Inspect(PathOf(golden), nullptr).problems > 0) == visible);
  }
}

TEST_CASE("damage is reported at its offset", "[dwsctl]") {
  std::map<std::string, RankLayout> layouts;
  for (const golden::GoldenCase& golden : golden::MakeGoldenCases()) {
    layouts.emplace(golden.name, golden.layout);
  }
  const auto first = [&layouts](const std::string& name) {
    const Found found = Inspect("tests/golden/delta_v1/" + name + ".dws", &layouts.at(name));
    REQUIRE_FALSE(found.Problems().empty());
    return found.Problems().front();
  };
  CHECK(first("magic_flipped").offset == 0);
  CHECK(first("format_version_2").offset == 8);
  CHECK(first("format_version_flipped").offset == 8);
  CHECK(first("header_truncated").offset == 63);
  CHECK(first("manifest_truncated").offset == 100);
  CHECK(first("manifest_truncated").message.starts_with("cut off: 36 of the manifest's"));
  CHECK(first("manifest_flipped").offset == 64);
  CHECK(first("frames_truncated").offset == 244);
  CHECK(first("byte_after_the_last_frame").offset == 245);
  CHECK(first("frame_flipped").message.find("checksum") != std::string::npos);
  CHECK(first("class_split_without_a_table").message.find("class-split") != std::string::npos);
  CHECK(first("mode_9_unknown").message.find("mode 9") != std::string::npos);
}

TEST_CASE("inspect explains every byte of an intact object", "[dwsctl]") {
  for (const golden::GoldenCase& golden : golden::MakeGoldenCases()) {
    if (golden.outcome != "OK") continue;
    INFO(golden.name);
    const std::vector<std::byte> bytes = ReadFile(PathOf(golden));
    const ObjectHeader header = LoadObjectHeader(bytes);
    std::vector<bool> seen(bytes.size());
    std::vector<bool> seen_in_manifest(header.manifest_raw_bytes);
    for (const InspectItem& item : Inspect(PathOf(golden), &golden.layout).items) {
      const auto* field = std::get_if<FieldItem>(&item);
      if (field == nullptr) continue;
      std::vector<bool>& where = field->in_manifest ? seen_in_manifest : seen;
      REQUIRE(field->offset + field->size_bytes <= where.size());
      std::fill_n(where.begin() + static_cast<std::ptrdiff_t>(field->offset), field->size_bytes,
                  true);
    }
    // The stored manifest is explained by the fields of the decompressed one.
    std::fill_n(seen.begin() + kObjectHeaderBytes, header.manifest_bytes, true);
    CHECK(std::count(seen.begin(), seen.end(), false) == 0);
    CHECK(std::count(seen_in_manifest.begin(), seen_in_manifest.end(), false) == 0);
  }
}

TEST_CASE("an object cut off anywhere is reported at its end and read up to there", "[dwsctl]") {
  TempFolder folder;
  const std::vector<std::byte> bytes =
      ReadFile("tests/golden/delta_v1/two_frames_around_unchanged_blocks.dws");
  const std::string path = folder.File("cut.dws");
  for (size_t size = 8; size < bytes.size(); ++size) {
    WriteFile(path, ByteSpan(bytes).first(size));
    const Found found = Inspect(path, nullptr);
    REQUIRE(found.problems > 0);
    REQUIRE(found.Problems().front().offset == size);
    REQUIRE(found.Problems().front().message.find("cut off") != std::string::npos);
  }
}

TEST_CASE("every flipped bit of an object is reported", "[dwsctl]") {
  TempFolder folder;
  const std::vector<std::byte> bytes = ReadFile("tests/golden/delta_v1/bf16_sparse.dws");
  const std::string path = folder.File("flipped.dws");
  for (size_t bit = 0; bit < bytes.size() * 8; bit += 7) {
    std::vector<std::byte> flipped = bytes;
    flipped[bit / 8] ^= std::byte{1} << (bit % 8);
    WriteFile(path, flipped);
    INFO(bit);
    REQUIRE(Inspect(path, nullptr).problems > 0);
  }
}

TEST_CASE("limits shorten what is shown and not what is checked", "[dwsctl]") {
  const InspectLimits few = {.slices = 1, .frames = 1, .blocks = 1};
  const Found all = Inspect("tests/golden/delta_v1/every_dtype.dws", nullptr);
  const Found some = Inspect("tests/golden/delta_v1/every_dtype.dws", nullptr, few);
  CHECK(some.items.size() < all.items.size() / 4);
  CHECK(std::get<SummaryItem>(some.items.back()).facts ==
        std::get<SummaryItem>(all.items.back()).facts);
}

TEST_CASE("inspect stops when its reader stops", "[dwsctl]") {
  const auto file = ByteFile::Open("tests/golden/delta_v1/every_dtype.dws");
  REQUIRE(file.ok());
  int items = 0;
  const auto problems = InspectObject(*file, nullptr, kEverything,
                                      [&items](const InspectItem&) { return ++items < 5; });
  CHECK(problems.ok());
  CHECK(items == 5);
}

}  // namespace dws::dwsctl
