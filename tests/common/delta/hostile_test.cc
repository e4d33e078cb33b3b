// Dense and hostile states: exact in every profile, and at most 0.1 % larger than the raw data.
#include <catch2/catch.hpp>

#include "common/delta/decoder.h"
#include "common/delta/objects/frame.h"
#include "tests/common/delta/encode_block.h"
#include "tests/common/delta/hostile_cases.h"
#include "tests/common/delta/objects.h"
#include "tests/common/delta/samples.h"

namespace dws::samples {
namespace {

struct Profile {
  const char* name;
  EncodeOptions options;
  bool class_split = false;
};
constexpr Profile kProfiles[] = {
    {"relative", {.relative = true, .absolute = false, .zstd = false}},
    {"relative and absolute", {.relative = true, .absolute = true, .zstd = false}},
    {"with zstd", {.relative = true, .absolute = true, .zstd = true}},
    {"class-split", {.relative = true, .absolute = false, .zstd = false}, true},
    {"full", {.relative = false, .absolute = true, .zstd = false}},
    {"full with zstd", {.relative = false, .absolute = true, .zstd = true}}};

Bytes Encode(const HostileCase& hostile, const Profile& profile) {
  const auto& [name, layout, before, after] = hostile;
  Encoding encoding = EncodeState(layout, before, after, profile.options);
  if (profile.class_split) {
    SplitWhereSmaller(layout, before, after, ChooseTables(layout, before, after), encoding);
  }
  return SealObject(layout, encoding, 4);
}

// Returns the object between the two states of `hostile`; REQUIREs that applying it gives the
// second state exactly.
Bytes CheckExact(const HostileCase& hostile, const Profile& profile) {
  Bytes object = Encode(hostile, profile);
  State state = hostile.before;
  const Status status = ApplyObject(object, hostile.layout, true, state);
  INFO(ToString(status));
  REQUIRE(status.ok());
  REQUIRE(state == hostile.after);
  return object;
}

// An object that needs no base leads to the new state from any other state.
void CheckNeedsNoBase(const HostileCase& hostile, ByteSpan object) {
  State state = RandomState(hostile.layout, 77);
  REQUIRE(ApplyObject(object, hostile.layout, false, state).ok());
  REQUIRE(state == hostile.after);
}

// Every block is class-split by a table of arbitrary thresholds.
void CheckSplitEverywhere(const HostileCase& hostile) {
  const ClassTable table{.thresholds = {1, 9, 40, 70, 101, 126, 127},
                         .threshold_count = 7,
                         .hot_below = 44,
                         .hot_scale = 47};
  Encoding encoding = EncodeState(hostile.layout, hostile.before, hostile.after, {});
  SplitEveryBlock(hostile.layout, hostile.before, hostile.after, table, encoding);
  State state = hostile.before;
  REQUIRE(ApplyObject(SealObject(hostile.layout, encoding, 4), hostile.layout, true, state).ok());
  REQUIRE(state == hostile.after);
}

}  // namespace

TEST_CASE("hostile tensors of every dtype are exact in every profile", "[hostile]") {
  Random random(TestSeed());
  for (const DType dtype : kAllDTypes) {
    for (const uint32_t elements : {1U, 2U, 3U, 1021U, limits::kBlockElements + 3}) {
      for (const HostileCase& hostile : HostileTensors(random, dtype, elements)) {
        CheckSplitEverywhere(hostile);
        for (const Profile& profile : kProfiles) {
          INFO(hostile.name << ", " << profile.name);
          const Bytes object = CheckExact(hostile, profile);
          if (!profile.options.relative) CheckNeedsNoBase(hostile, object);
          // Header, identity, one slice and one frame of one block, wherever the element is.
          if (hostile.name.ends_with(": one element") && profile.options.relative) {
            REQUIRE(object.size() < 400);
          }
        }
      }
    }
  }
}

TEST_CASE("an object is at most a thousandth larger than its tensor", "[hostile]") {
  Random random(TestSeed());
  constexpr uint32_t kBytes = 1 << 20;
  for (const DType dtype : {DType::kU8, DType::kF8E5M2, DType::kI16, DType::kBF16, DType::kU32,
                            DType::kF32, DType::kI64, DType::kF64}) {
    const uint32_t elements = kBytes / ElementBytes(dtype) - 1;
    for (const HostileCase& hostile : HostileTensors(random, dtype, elements)) {
      for (const Profile& profile : kProfiles) {
        const Bytes object = Encode(hostile, profile);
        INFO(hostile.name << ", " << profile.name << ": " << object.size() << " bytes");
        REQUIRE(object.size() * 1000 <= hostile.layout.size_bytes() * 1001);
      }
    }
  }
}

TEST_CASE("FP8 codes under flipped scales are exact and relative objects are below half of raw",
          "[hostile]") {
  Random random(TestSeed());
  const HostileCase flipped = FlippedScales(random);
  size_t moved = 0;
  for (size_t i = 0; i < flipped.before[1].size(); ++i) {
    moved += flipped.before[1][i] != flipped.after[1][i] ? 1 : 0;
  }
  // In a third of the tiles all codes change except zeros, in the others single codes.
  REQUIRE(moved > flipped.before[1].size() / 5);
  for (const Profile& profile : kProfiles) {
    INFO(profile.name);
    const Bytes object = CheckExact(flipped, profile);
    REQUIRE(object.size() * 1000 <= flipped.layout.size_bytes() * 1001);
    if (profile.options.relative) REQUIRE(object.size() * 2 < flipped.layout.size_bytes());
  }
}

TEST_CASE("tensors of no or one or an odd number of elements are exact", "[hostile]") {
  Random random(TestSeed());
  const HostileCase odd = OddTensors(random);
  for (const Profile& profile : kProfiles) {
    INFO(profile.name);
    CheckExact(odd, profile);
  }
}

TEST_CASE("an object without changes has only a header and an identity", "[hostile]") {
  Random random(TestSeed());
  HostileCase same = OddTensors(random);
  same.after = same.before;
  REQUIRE(CheckExact(same, kProfiles[0]).size() < 256);
  REQUIRE(CheckExact(same, kProfiles[2]).size() < 256);
}

}  // namespace dws::samples
