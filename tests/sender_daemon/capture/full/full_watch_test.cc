#include "sender_daemon/capture/full/full_watch.h"

#include <catch2/catch.hpp>
#include <cmath>
#include <set>

namespace dws {
namespace {

constexpr uint64_t kBytes = uint64_t{64} << 20;

bool Pays(const FullWatch& watch, bool fast_links) {
  return watch.Cause(fast_links) == FullCause::kDense;
}

struct Watched {
  FullWatch watch{kBytes, 512};
  bool Learn(double share, bool whole = true, double changed = 0, bool fast_links = false) {
    watch.Learn({.delta_share = share,
                 .changed = static_cast<uint64_t>(changed * static_cast<double>(kBytes) / 2),
                 .whole = whole});
    return Pays(watch, fast_links);
  }
  // A version of BF16 in which this share of the elements changed by one step of either sign.
  bool LearnSteps(double changed, bool whole = true) {
    const double bits = 1 - (changed == 1 ? 0 : std::log2(1 - changed) / changed);  // about
    return Learn(changed * bits / 16, whole, changed, true);
  }
};

TEST_CASE("deltas are given up after two whole versions about as large as the weights",
          "[full_version]") {
  Watched model;
  CHECK_FALSE(model.Learn(1.0));
  CHECK_FALSE(model.Learn(0.87));
  CHECK_FALSE(model.Learn(0.88));
  CHECK_FALSE(model.Learn(1.0, false));  // lacked tensors: a full version might lack them too
  CHECK_FALSE(model.Learn(1.0));
  CHECK(model.Learn(0.88));
}

TEST_CASE("deltas come back after one version that would have been smaller, or that lacked blocks",
          "[full_version]") {
  Watched model;
  model.Learn(1.0);
  REQUIRE(model.Learn(1.0));
  for (int i = 0; i < 5; ++i) CHECK(model.Learn(0.76));  // between the thresholds nothing changes
  SECTION("smaller") { CHECK_FALSE(model.Learn(0.74)); }
  SECTION("not whole") { CHECK_FALSE(model.Learn(1.0, false)); }
  CHECK_FALSE(model.Learn(1.0));
  CHECK(model.Learn(1.0));
}

TEST_CASE("where links are fast, full versions begin where deltas take their time",
          "[full_version]") {
  Watched model;
  for (const double changed : {0.01, 0.1, 0.15}) {
    for (int i = 0; i < 5; ++i) CHECK_FALSE(model.LearnSteps(changed));
  }
  CHECK_FALSE(model.LearnSteps(0.4));
  CHECK(model.LearnSteps(0.4));
  CHECK_FALSE(Pays(model.watch, false));  // on slow links a tenth of the bytes is worth its time
  CHECK(model.LearnSteps(0.25));          // between the thresholds nothing changes
  SECTION("fewer changes") { CHECK_FALSE(model.LearnSteps(0.1)); }
  SECTION("not whole") { CHECK_FALSE(model.LearnSteps(1.0, false)); }
  CHECK_FALSE(model.LearnSteps(1.0));
  CHECK(model.LearnSteps(1.0));
}

TEST_CASE("far moves make deltas slow sooner", "[full_version]") {
  Watched model;
  model.Learn(0.13, true, 0.1, true);
  CHECK(model.Learn(0.13, true, 0.1, true));  // a tenth of the elements, to random bits
}

TEST_CASE("of few weights every version is a delta", "[full_version]") {
  FullWatch watch(FullWatch::kWeightsBytesMin - 1, 512);
  for (int i = 0; i < 5; ++i) {
    watch.Learn({.delta_share = 1.0, .changed = 100, .whole = true});
  }
  CHECK_FALSE(Pays(watch, true));
}

// A full version of the sender's own without a sample.
void LearnUnsampled(FullWatch& watch, uint64_t changed, bool whole = true) {
  watch.Learn({.changed = changed, .whole = whole});
}

FullWatch SamplesNext(uint64_t block_count) {
  FullWatch watch(kBytes, block_count);
  for (uint32_t i = 1; i < FullWatch::kSampleVersionEvery; ++i) LearnUnsampled(watch, 1);
  return watch;
}

constexpr FullWatch::Version kSampled{.delta_share = 1.0, .changed = 100, .whole = true};

TEST_CASE("a sample is one block in 64, another each time, and all of few blocks",
          "[full_version]") {
  FullWatch large = SamplesNext(100'000);
  std::set<uint64_t> seen;
  for (uint64_t sample = 1; sample <= FullWatch::kSampleEvery; ++sample) {
    size_t count = 0;
    for (uint64_t number = 0; number < 100'000; ++number) {
      if (!large.InSample(number)) continue;
      ++count;
      seen.insert(number);
    }
    CHECK(count >= 1562);
    CHECK(count <= 1563);
    large.Learn(kSampled);
    for (uint32_t i = 1; i < FullWatch::kSampleVersionEvery; ++i) LearnUnsampled(large, 100);
  }
  CHECK(seen.size() == 100'000);
  const FullWatch middle = SamplesNext(10 * FullWatch::kSampleBlocksMin + 9);
  for (uint64_t number = 0; number < 300; ++number) {
    CHECK(middle.InSample(number) == (number % 10 == 0));
  }
  const FullWatch small = SamplesNext(2 * FullWatch::kSampleBlocksMin - 1);
  for (uint64_t number = 0; number < 2 * FullWatch::kSampleBlocksMin - 1; ++number) {
    CHECK(small.InSample(number));
  }
}

TEST_CASE("one full version in four has a sample, the last of them", "[full_version]") {
  FullWatch watch(kBytes, 10);
  for (int i = 0; i < 2; ++i) watch.Learn(kSampled);
  for (int round = 0; round < 3; ++round) {
    for (uint32_t i = 1; i < FullWatch::kSampleVersionEvery; ++i) {
      CHECK_FALSE(watch.InSample(0));
      LearnUnsampled(watch, 100);
    }
    CHECK(watch.InSample(0));
    if (round == 1) {  // none of its blocks was handed over
      LearnUnsampled(watch, 100, false);
      CHECK(watch.InSample(0));
    }
    watch.Learn(kSampled);
  }
}

TEST_CASE("without a sample a changed element costs what it did last", "[full_version]") {
  Watched model;
  for (int i = 0; i < 2; ++i) model.Learn(1.0, true, 0.8);
  REQUIRE(Pays(model.watch, false));
  const auto changed = [](double share) {
    return static_cast<uint64_t>(share * static_cast<double>(kBytes) / 2);
  };
  LearnUnsampled(model.watch, changed(0.61));  // 0.76 of the bytes
  CHECK(Pays(model.watch, false));
  SECTION("fewer changes") { LearnUnsampled(model.watch, changed(0.59)); }
  SECTION("not whole") { LearnUnsampled(model.watch, changed(0.8), false); }
  SECTION("less for each, as the sample shows") { model.Learn(0.7, true, 0.8); }
  CHECK_FALSE(Pays(model.watch, false));
}

}  // namespace
}  // namespace dws
