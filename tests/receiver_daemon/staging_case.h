// Fixture of the staging tests: the layout of two trainer ranks, a delta between two versions as
// it arrives, and staging it.
#pragma once

#include <catch2/catch.hpp>
#include <span>
#include <utility>
#include <vector>

#include "common/spool/fetched_object.h"
#include "receiver_daemon/weights/direct_write.h"
#include "receiver_daemon/weights/staging.h"
#include "tests/receiver_daemon/fake_engine.h"
#include "tests/receiver_daemon/fake_trainer.h"

namespace dws {

inline constexpr uint64_t kPlenty = uint64_t{1} << 30;

// Several blocks, an odd tail, columns of two trainer ranks, an FP32 tensor, a scalar.
inline std::vector<std::shared_ptr<const RankLayout>> Ranks() {
  const TensorSpec columns{
      .name = "columns", .dtype = DType::kBF16, .shape = {300, 501}, .cuts = {{1, {100, 350}}}};
  return {MakeRankLayout(
              {{.tensor = {.name = "big", .dtype = DType::kBF16, .shape = {150'001}, .cuts = {}}},
               {.tensor = columns, .cells = {{0, 2}}}}),
          MakeRankLayout(
              {{.tensor = columns, .cells = {{2, 1}}},
               {.tensor = {.name = "norm", .dtype = DType::kF32, .shape = {777}, .cuts = {}}},
               {.tensor = {.name = "scale", .dtype = DType::kF32, .shape = {}, .cuts = {}}}})};
}

// Both memories have to behave alike, so tests run on both.
inline MemoryKind AnyMemory() { return GENERATE(MemoryKind::kHost, MemoryKind::kCuda); }

inline Spool SpoolOf(ByteSpan object) {
  Spool spool({.folder = "", .memory_bytes_max = kPlenty, .size_bytes_max = kPlenty});
  REQUIRE(spool.Append(object).ok());
  return spool;
}

struct Delta {
  DeltaManifest manifest;
  std::vector<SpooledFrame> frames;
  Spool spool;
};

inline Delta MakeDelta(const FakeTrainer& trainer, uint32_t rank, uint64_t base, uint64_t version) {
  Spool spool = SpoolOf(trainer.Object(rank, base, version));
  auto object = ParseObject(spool, *trainer.ranks()[rank]);
  REQUIRE(object.ok());
  return {.manifest = std::move(object->manifest),
          .frames = std::move(object->frames),
          .spool = std::move(spool)};
}

// Stages a delta that has arrived as a whole.
inline Result<StagedDelta> StageDelta(const EngineWeights& weights, TrainerRank rank,
                                      const DeltaManifest& manifest,
                                      std::span<const SpooledFrame> frames, const Spool& spool,
                                      std::span<const SliceState> live, uint64_t staging_bytes_max,
                                      ThreadPool& pool) {
  DeltaStager stager(weights, rank, staging_bytes_max, pool);
  DWS_RETURN_IF_ERROR(stager.Add(frames, spool));
  return stager.Finish(manifest, live);
}

inline StagedDelta Stage(const FakeEngine& engine, uint32_t rank, const Delta& delta,
                         const LiveState& live, ThreadPool& pool,
                         uint64_t staging_bytes_max = kPlenty) {
  Result<StagedDelta> staged =
      StageDelta(*engine.weights, TrainerRank(rank), delta.manifest, delta.frames, delta.spool,
                 live.ranks[rank].slices, staging_bytes_max, pool);
  REQUIRE(staged.ok());
  return *std::move(staged);
}

// Writes the staged values, as a commit does.
inline void Write(const EngineWeights& weights, const StagedDelta& staged) {
  ThreadPool pool(1);
  ScatterList list;
  AddToList(staged.groups, list);
  REQUIRE(Scatter(weights, list, pool).ok());
}

inline uint64_t StagedBytes(const StagedDelta& staged) {
  uint64_t bytes = 0;
  for (const StagedParts& parts : staged.groups) {
    for (const auto& part : parts) bytes += part->size_bytes();
  }
  return bytes;
}

}  // namespace dws
