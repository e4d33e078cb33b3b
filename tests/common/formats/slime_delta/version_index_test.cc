#include "common/formats/slime_delta/version_index.h"

#include <catch2/catch.hpp>
#include <nlohmann/json.hpp>
#include <string>

namespace dws::slime {
namespace {

using Catch::Contains;

nlohmann::json Sound() {
  return {{"metadata",
           {{"version", "000002"},
            {"base_version", "000001"},
            {"delta_encoding", "xor"},
            {"compression_format", "zstd"},
            {"checksum_format", "blake3"}}},
          {"weight_map", {{"a", "model-00000-of-00001.safetensors"}}}};
}

std::string Refusal(const nlohmann::json& index, uint64_t version = 2) {
  const auto parsed = ParseVersionIndex(index.dump(), version, "index");
  return parsed.ok() ? "accepted" : ToString(parsed.status());
}

TEST_CASE("an index of another writer is read", "[slime]") {
  nlohmann::json index = Sound();
  index["metadata"]["more"] = "kept";
  index["metadata"]["number"] = 7;
  const auto parsed = ParseVersionIndex(index.dump(), 2, "index");
  REQUIRE(parsed.ok());
  CHECK(parsed->version == 2);
  REQUIRE(parsed->delta.has_value());
  CHECK(*parsed->delta == DeltaDescription{.base_version = 1,
                                           .encoding = Encoding::kXor,
                                           .checksum = ChecksumFormat::kBlake3});
  CHECK(parsed->weight_map.size() == 1);
  CHECK(parsed->extra == std::map<std::string, std::string>{{"more", "kept"}});
}

TEST_CASE("an index is written with all metadata as strings", "[slime]") {
  const VersionIndex index{
      .version = 12,
      .delta = DeltaDescription{.base_version = 11, .encoding = Encoding::kOverwrite},
      .weight_map = {{"a", "model-00000-of-00001.safetensors"}}};
  const auto text = MakeVersionIndex(index);
  REQUIRE(text.ok());
  const nlohmann::json expected = {{"metadata",
                                    {{"version", "000012"},
                                     {"base_version", "000011"},
                                     {"delta_encoding", "overwrite"},
                                     {"compression_format", "zstd"},
                                     {"checksum_format", "xxh3-128"}}},
                                   {"weight_map", {{"a", "model-00000-of-00001.safetensors"}}}};
  CHECK(nlohmann::json::parse(*text) == expected);
  CHECK_FALSE(MakeVersionIndex({.version = 1, .extra = {{"base_version", "0"}}}).ok());
}

TEST_CASE("an index with an incomplete delta description is refused", "[slime]") {
  for (const char* const key :
       {"version", "base_version", "compression_format", "checksum_format"}) {
    nlohmann::json index = Sound();
    index["metadata"].erase(key);
    CHECK_THAT(Refusal(index), Contains("DATA_LOSS") && Contains(std::string("has no ") + key));
  }
  // Without delta_encoding it would be a full checkpoint, which replaces everything.
  nlohmann::json index = Sound();
  index["metadata"].erase("delta_encoding");
  CHECK_THAT(Refusal(index), Contains("neither a delta nor a full checkpoint"));
}

TEST_CASE("a full checkpoint may say that its shards have digests", "[slime]") {
  nlohmann::json index = Sound();
  index["metadata"] = {{"total_size", 64}, {"checksum_format", "adler32"}};  // as ModelExpress
  const auto parsed = ParseVersionIndex(index.dump(), 2, "index");
  INFO(parsed.status());
  REQUIRE(parsed.ok());
  CHECK_FALSE(parsed->delta.has_value());
  CHECK(parsed->full_checksum == ChecksumFormat::kAdler32);
  CHECK(parsed->Extra("checksum_format").empty());
  const auto again = ParseVersionIndex(*MakeVersionIndex(*parsed), 2, "index");
  REQUIRE(again.ok());
  CHECK(again->full_checksum == parsed->full_checksum);

  index["metadata"]["checksum_format"] = "crc32";
  CHECK_THAT(Refusal(index), Contains("UNIMPLEMENTED") && Contains("checksum_format 'crc32'"));
}

TEST_CASE("metadata that is not a string is refused and is not taken for missing", "[slime]") {
  for (const char* const key :
       {"version", "base_version", "delta_encoding", "compression_format", "checksum_format"}) {
    nlohmann::json index = Sound();
    index["metadata"][key] = 2;
    CHECK_THAT(Refusal(index), Contains(std::string("its ") + key + " is not a string"));
  }
}

TEST_CASE("an unknown encoding or compression or checksum is UNIMPLEMENTED", "[slime]") {
  for (const char* const key : {"delta_encoding", "compression_format", "checksum_format"}) {
    nlohmann::json index = Sound();
    index["metadata"][key] = "other";
    CHECK_THAT(Refusal(index), Contains("UNIMPLEMENTED") && Contains("'other'"));
  }
}

TEST_CASE("a version must be that of its folder and follow its base without a gap", "[slime]") {
  CHECK(Refusal(Sound()) == "accepted");
  CHECK_THAT(Refusal(Sound(), 3),
             Contains("is for version 000002, but its folder is for version 000003"));
  nlohmann::json index = Sound();
  for (const char* const base : {"000000", "000002", "000003"}) {
    index["metadata"]["base_version"] = base;
    CHECK_THAT(Refusal(index), Contains("expected the version before"));
  }
  for (const char* const version : {"", "-1", "2.0", " 2", "2026-11-24", "99999999999999999999"}) {
    index = Sound();
    index["metadata"]["version"] = version;
    CHECK_THAT(Refusal(index), Contains("DATA_LOSS"));
  }
}

TEST_CASE("a version may have a name and then names its base", "[slime]") {
  nlohmann::json index = Sound();
  index["metadata"]["version"] = "5f0c-b";
  index["metadata"]["base_version"] = "9e17-a";
  const auto parsed = ParseVersionIndex(index.dump(), 2, "index");
  INFO(parsed.status());
  REQUIRE(parsed.ok());
  CHECK(parsed->version == 2);
  CHECK(parsed->name == "5f0c-b");
  CHECK(parsed->delta->base_version == 1);
  CHECK(parsed->delta->base_name == "9e17-a");
  CHECK(ParseVersionIndex(*MakeVersionIndex(*parsed), 2, "made")->name == "5f0c-b");
  CHECK_THAT(Refusal(index, 0), Contains("expected the version before"));
  index["metadata"]["version"] = std::string(257, 'a');
  CHECK_THAT(Refusal(index), Contains("a name with a letter and of 256 bytes at most"));
  index = Sound();
  index["metadata"]["base_version"] = "9e17-a";
  CHECK_THAT(Refusal(index), Contains("version 000002 on base 9e17-a"));
}

TEST_CASE("an index without a delta encoding is a full checkpoint", "[slime]") {
  const nlohmann::json index = {{"metadata", {{"total_size", 10}, {"version", "000002"}}},
                                {"weight_map", {{"a", "model-00001-of-00001.safetensors"}}}};
  const auto parsed = ParseVersionIndex(index.dump(), 2, "index");
  REQUIRE(parsed.ok());
  CHECK_FALSE(parsed->delta.has_value());
  CHECK(NextStep(7, *parsed).value() == ChainStep::kReset);
}

TEST_CASE("an empty weight map is a version without changes", "[slime]") {
  nlohmann::json index = Sound();
  index["weight_map"] = nlohmann::json::object();
  CHECK(Refusal(index) == "accepted");
}

TEST_CASE("folder names have six digits or as many as the version needs", "[slime]") {
  CHECK(VersionFolderName(2) == "weight_v000002");
  CHECK(ParseVersionFolderName("weight_v000002") == 2);
  CHECK(ParseVersionFolderName("weight_v1234567") == 1'234'567);
  for (const char* const name :
       {"weight_v2", "weight_v0000002", "weight_v", "weight_v00000x", "v000002", "weight_v-00001",
        "weight_v000002.tmp", "weight_v9999999999"}) {
    CHECK_FALSE(ParseVersionFolderName(name).has_value());
  }
}

TEST_CASE("a delta is applied only to its base", "[slime]") {
  const VersionIndex third{.version = 3, .delta = DeltaDescription{.base_version = 2}};
  CHECK(NextStep(2, third).value() == ChainStep::kApply);
  CHECK(NextStep(3, third).value() == ChainStep::kApplied);
  for (const uint64_t local : {0, 1, 4, 9}) {
    CHECK_THAT(ToString(NextStep(local, third).status()),
               Contains("FAILED_PRECONDITION") && Contains("is a delta of 000002"));
  }
  const VersionIndex first{.version = 1, .delta = DeltaDescription{}};
  CHECK(NextStep(0, first).value() == ChainStep::kApply);
}

}  // namespace
}  // namespace dws::slime
