// Full tensors from lent GPU memory, to live weights of an engine that is not released, and staged
// beside one that runs.
#include "receiver_daemon/weights/lent_copy.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <numeric>
#include <optional>
#include <utility>
#include <vector>

#include "common/memory/cuda/ipc/cuda_export.h"
#include "common/memory/cuda/staging_run.h"
#include "common/transport/same_host/gpu_copy_places.h"
#include "tests/receiver_daemon/staging_case.h"

namespace dws {
namespace {

constexpr TrainerRank kRank = TrainerRank(0);

// A sender's copy of one version, in this process.
struct Lender {
  // `clock`: the loan ends when it is at its second moment; null: it does not end.
  Lender(const FakeTrainer& trainer, uint64_t version, const Clock* clock = nullptr)
      : layout(*trainer.ranks()[0]) {
    std::vector<RankSlice> numbers;
    for (uint32_t s = 0; s < layout.slice_count(); ++s) numbers.emplace_back(s);
    const GpuCopyPlaces places(layout, numbers);
    auto made = device->AllocateToLend(places.size_bytes);
    REQUIRE(made.ok());
    buffer = *std::move(made);
    const cuda::DeviceRange range{.address = buffer.address(), .size_bytes = places.size_bytes};
    auto exported = cuda::ExportMemory(*device, std::span(&range, 1));
    REQUIRE((exported.ok() && exported->regions.size() == 1));
    std::optional<cuda::LoanTime> time;
    if (clock != nullptr) time.emplace(cuda::LoanTime{*clock, TimePoint(Duration(1))});
    memory = std::make_unique<cuda::LentMemory>(exported->regions[0],
                                                std::move(exported->descriptors), time);
    const std::vector<Digest> digests = trainer.Digests(version, 0);
    for (uint32_t s = 0; s < layout.slice_count(); ++s) {
      Write(places.offsets[s], trainer.At(version, 0)[s]);
      slices.push_back({.slice = RankSlice(s),
                        .memory = memory.get(),
                        .offset_bytes = places.offsets[s],
                        .expected = digests[s]});
    }
  }
  void Write(uint64_t offset, ByteSpan bytes) {
    auto stream = device->CreateStream();
    REQUIRE(stream.ok());
    REQUIRE(stream->CopyToDevice(buffer.address() + offset, bytes).ok());
    REQUIRE(stream->Synchronize().ok());
  }

  const cuda::CudaDevicePtr device = cuda::TestDevice();
  const RankLayout& layout;
  cuda::CudaBuffer buffer;
  std::unique_ptr<cuda::LentMemory> memory;
  std::vector<LentSlice> slices;
};

// Returns whether all copies of the rank's slice are as in that version.
bool Has(const FakeEngine& engine, const FakeTrainer& trainer, uint64_t version, uint32_t slice) {
  for (size_t copy = 0; copy < 2; ++copy) {
    if (engine.Read(0, slice, copy) != trainer.At(version, 0)[slice]) return false;
  }
  return true;
}

struct Case {
  Case() {
    trainer.Publish();
    trainer.Publish(0.5);
    engine.emplace(trainer.layouts(), 2, 1, MemoryKind::kCuda);
    engine->Load(trainer, 1);
  }
  const EngineWeights& weights() const { return *engine->weights; }
  void Scatter(const std::vector<StagedParts>& staged) {
    ScatterList list;
    AddToList(staged, list);
    REQUIRE(dws::Scatter(weights(), list, pool).ok());
  }

  FakeTrainer trainer{Ranks()};
  std::optional<FakeEngine> engine;
  ThreadPool pool{2};
};

TEST_CASE("lent slices are written to every copy of an engine that is not released", "[staging]") {
  Case with;
  Lender lender(with.trainer, 2);
  DirectWrite direct(with.weights());
  const auto arrived = direct.Copy(kRank, lender.slices);
  REQUIRE(arrived.ok());
  CHECK(std::accumulate(arrived->begin(), arrived->end(), size_t{0}) == lender.slices.size());
  for (uint32_t s = 0; s < lender.slices.size(); ++s) CHECK(Has(*with.engine, with.trainer, 2, s));
  CHECK(direct.touched().size() == lender.slices.size());
}

TEST_CASE("a lent slice with a flipped bit is found, and no other is blamed", "[staging]") {
  Case with;
  Lender lender(with.trainer, 2);
  const uint32_t damaged = GENERATE(0U, 2U);
  SliceBytes bytes = with.trainer.At(2, 0)[damaged];
  bytes[bytes.size() - 1] ^= std::byte{1};
  lender.Write(lender.slices[damaged].offset_bytes, bytes);
  std::vector<uint8_t> expected(lender.slices.size(), 1);
  expected[damaged] = 0;
  SECTION("when it is written") {
    DirectWrite direct(with.weights());
    const auto arrived = direct.Copy(kRank, lender.slices);
    REQUIRE(arrived.ok());
    CHECK(*arrived == expected);
  }
  SECTION("when it is staged: it is not written") {
    LentCopy staging(with.weights(), kPlenty);
    const auto arrived = staging.Copy(kRank, lender.slices);
    REQUIRE(arrived.ok());
    CHECK(*arrived == expected);
    with.Scatter(staging.TakeStaged());
    for (uint32_t s = 0; s < lender.slices.size(); ++s) {
      CHECK(Has(*with.engine, with.trainer, s == damaged ? 1 : 2, s));
    }
  }
}

TEST_CASE("lent slices are staged beside a running engine, and scattered by the commit",
          "[staging]") {
  Case with;
  std::vector<StagedParts> staged;
  {
    Lender lender(with.trainer, 2);
    LentCopy staging(with.weights(), kPlenty);
    REQUIRE(staging.Copy(kRank, lender.slices).ok());
    staged = staging.TakeStaged();
    // The sender's next capture changes its copy; then the loan ends.
    lender.Write(0, SliceBytes(1000, std::byte{9}));
  }
  uint64_t bytes = 0;
  for (const StagedParts& parts : staged) {
    for (const auto& part : parts) bytes += part->size_bytes();
  }
  CHECK(bytes >= with.trainer.ranks()[0]->size_bytes());
  for (uint32_t s = 0; s < 3; ++s) CHECK(Has(*with.engine, with.trainer, 1, s));
  with.Scatter(staged);
  for (uint32_t s = 0; s < 3; ++s) CHECK(Has(*with.engine, with.trainer, 2, s));
}

// At its first moment for so many calls, then at its second one.
class CountedClock final : public Clock {
 public:
  explicit CountedClock(int calls) : left_(calls) {}
  TimePoint Now() const override { return TimePoint(Duration(--left_ < 0 ? 1 : 0)); }
  int left() const { return left_; }

 private:
  mutable int left_;
};

TEST_CASE("whenever the time of a loan ends, nothing counts that is read until then", "[staging]") {
  constexpr int kMany = 1000;
  const bool staged = GENERATE(true, false);
  const auto copy = [staged](Case& with, const CountedClock& clock) {
    Lender lender(with.trainer, 2, &clock);
    LentCopy staging(with.weights(), kPlenty);
    DirectWrite direct(with.weights());
    DeviceTarget& target = staged ? static_cast<DeviceTarget&>(staging) : direct;
    const Status copied = target.Copy(kRank, lender.slices).status();
    CHECK(staging.TakeStaged().empty() == (!staged || !copied.ok()));
    return copied;
  };
  Case with;
  const CountedClock in_time(kMany);
  REQUIRE(copy(with, in_time).ok());
  const int looks = kMany - in_time.left();
  REQUIRE(looks >= 3);  // when it is mapped, before it is read, and afterwards
  for (int calls = 0; calls < looks; ++calls) {
    INFO(calls << " of " << looks);
    const CountedClock ends(calls);
    CHECK(absl::IsDeadlineExceeded(copy(with, ends)));
  }
  const CountedClock just_in_time(looks);
  CHECK(copy(with, just_in_time).ok());
}

// Does something at its call number `at`.
class HookedClock final : public Clock {
 public:
  TimePoint Now() const override {
    if (++calls == at) hook();
    return {};
  }
  mutable int calls = 0;
  int at = 0;
  std::function<void()> hook;
};

TEST_CASE("a slice that arrives at one of two GPUs only is not taken, and the others are",
          "[staging]") {
  if (cuda::SecondDevice() == nullptr) return;
  const bool staged = GENERATE(true, false);
  FakeTrainer trainer(Ranks());
  trainer.Publish();
  trainer.Publish(0.5);
  const FakeEngine first(trainer.layouts(), 1, 1, MemoryKind::kCuda);
  const FakeEngine second(trainer.layouts(), 1, 1, MemoryKind::kCuda, cuda::SecondDevice());
  for (const FakeEngine* const engine : {&first, &second}) engine->Load(trainer, 1);
  const auto both = EngineWeights::Create(trainer.layouts(), {first.memory(), second.memory()});
  REQUIRE(both.ok());
  LentCopy staging(**both, kPlenty);
  DirectWrite direct(**both);
  DeviceTarget& target = staged ? static_cast<DeviceTarget&>(staging) : direct;
  HookedClock clock;
  Lender lender(trainer, 2, &clock);
  const std::vector<uint8_t> all(lender.slices.size(), 1);
  const auto undisturbed = target.Copy(kRank, lender.slices);
  REQUIRE(undisturbed.ok());
  CHECK(*undisturbed == all);
  (void)staging.TakeStaged();

  // A capture changes it between the reads of the two.
  clock.at = clock.calls + clock.calls / 2;
  clock.hook = [&] {
    SliceBytes bytes = trainer.At(2, 0)[0];
    bytes[bytes.size() / 2] ^= std::byte{1};
    lender.Write(lender.slices[0].offset_bytes, bytes);
  };
  std::vector<uint8_t> but_one = all;
  but_one[0] = 0;
  const auto arrived = target.Copy(kRank, lender.slices);
  REQUIRE(arrived.ok());
  CHECK(*arrived == but_one);
  if (staged) {
    for (const FakeEngine* const engine : {&first, &second}) engine->Load(trainer, 1);
    const std::vector<StagedParts> parts = staging.TakeStaged();
    ScatterList list;
    AddToList(parts, list);
    ThreadPool pool(1);
    REQUIRE(Scatter(**both, list, pool).ok());
  }
  const auto has = [&](const FakeEngine& engine, uint32_t slice) {
    return engine.Read(0, slice) == trainer.At(2, 0)[slice];
  };
  CHECK(has(first, 0) != has(second, 0));
  for (uint32_t s = 1; s < all.size(); ++s) CHECK((has(first, s) && has(second, s)));
}

TEST_CASE("what does not fit --staging-bytes is not staged, by name", "[staging]") {
  Case with;
  Lender lender(with.trainer, 2);
  LentCopy staging(with.weights(), with.trainer.ranks()[0]->size_bytes() - 1);
  const auto arrived = staging.Copy(kRank, lender.slices);
  CHECK(absl::IsResourceExhausted(arrived.status()));
  CHECK(Message(arrived.status()).find("--staging-bytes") != std::string_view::npos);
  CHECK(staging.TakeStaged().empty());
}

TEST_CASE("whether everything fits --staging-bytes is known beforehand", "[staging]") {
  Case with;
  Lender lender(with.trainer, 2);
  std::vector<RankSlice> slices;
  for (const LentSlice& lent : lender.slices) slices.push_back(lent.slice);
  const uint64_t needed = GpuCopyPlaces(lender.layout, slices).size_bytes;
  LentCopy room(with.weights(), needed);
  CHECK(room.HasRoom(kRank, slices));
  CHECK(room.Copy(kRank, lender.slices).ok());
  CHECK_FALSE(LentCopy(with.weights(), needed - 1).HasRoom(kRank, slices));
  CHECK(LentCopy(with.weights(), 0).HasRoom(kRank, {}));
}

TEST_CASE("memory that the engine may need is not taken for lent slices", "[staging]") {
  Case with;
  Lender lender(with.trainer, 2);
  const auto free = lender.device->FreeBytes();
  REQUIRE((free.ok() && *free > cuda::kStagingSpareBytes));
  const auto others = lender.device->Allocate(*free - cuda::kStagingSpareBytes);
  REQUIRE(others.ok());
  LentCopy staging(with.weights(), kPlenty);
  const auto arrived = staging.Copy(kRank, lender.slices);
  CHECK(absl::IsResourceExhausted(arrived.status()));
  CHECK(Message(arrived.status()).find("more for the engine") != std::string_view::npos);
}

TEST_CASE("only slices that are on GPUs alone are taken from lent memory", "[staging]") {
  Case with;
  const FakeEngine host(with.trainer.layouts(), 1, 1, MemoryKind::kHost);
  CHECK(DirectWrite(with.weights()).Takes(kRank, RankSlice(0)));
  CHECK(LentCopy(with.weights(), kPlenty).Takes(kRank, RankSlice(0)));
  CHECK_FALSE(DirectWrite(*host.weights).Takes(kRank, RankSlice(0)));
  CHECK_FALSE(LentCopy(*host.weights, kPlenty).Takes(kRank, RankSlice(0)));
}

}  // namespace
}  // namespace dws
