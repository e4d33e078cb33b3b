// The encoding of the deltas in a shared directory: the files that are written, and how receivers
// read them that join or are several versions behind.
#include <catch2/catch.hpp>

#include "tests/common/delta/old_state.h"
#include "tests/conformance/follower.h"
#include "tests/conformance/shared_directory.h"

namespace dws {
namespace {

constexpr DeltaLogLimits kNoLimits{.bytes_max = uint64_t{1} << 30, .versions_max = 64};

}  // namespace

TEST_CASE("the directory has class-split deltas, or fast ones if they are wanted", "[shared_fs]") {
  const DeltaProfile profile = GENERATE(DeltaProfile::kWan, DeltaProfile::kFast);
  Directory directory(32, {}, false, kNoLimits, profile);
  uint64_t bytes = 0;
  for (uint64_t version = 1; version <= 5; ++version) {
    REQUIRE(directory.Publish(version).ok());
    if (version == 1) continue;
    const RetainedVersionPtr newest = directory.rank.state()->log->Newest();
    const std::vector<std::byte> delta =
        directory.files.Content(directory.Folder(version) + "/delta");
    bytes += delta.size();
    if (version == 2) continue;  // no class tables had been learnt
    REQUIRE(newest->other_bytes(DeltaProfile::kWan) > 0);
    CHECK(newest->other_bytes(DeltaProfile::kWan) < newest->object.size());
    CHECK(delta == (profile == DeltaProfile::kWan ? newest->other_object : newest->object));
  }
  CHECK(directory.publisher.view().bytes >= bytes);
  // A receiver that joins begins with the full tensors of version 1.
  CHECK(directory.publisher.view().anchors == 1);
  CHECK(*directory.Read(5) == directory.rank.At(5));
  // Several together: over the weights that they begin with.
  const RankLayout& layout = directory.rank.layout();
  SharedSource source = directory.Source();
  REQUIRE(source.Look(std::nullopt).ok());
  const auto compose = [&](const OldWeights* old) {
    return source.Object(directory.rank.state()->stream, WeightVersion(5), layout,
                         {.base = WeightVersion(2), .slices = std::nullopt, .old = old},
                         Follower::SpoolOptions());
  };
  const samples::OldState old(layout, directory.rank.At(2));
  const auto composed = compose(&old);
  REQUIRE(composed.ok());
  std::vector<std::byte> buffer;
  Weights weights = directory.rank.At(2);
  ApplyObject(layout, *composed->Read(0, composed->size_bytes(), buffer), weights);
  CHECK(weights == directory.rank.At(5));
  const Status without = compose(nullptr).status();
  INFO(ToString(without));
  CHECK(without.code() ==
        (profile == DeltaProfile::kWan ? absl::StatusCode::kAborted : absl::StatusCode::kOk));
}

}  // namespace dws
