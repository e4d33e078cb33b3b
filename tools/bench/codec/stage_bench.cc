// Staging writes nothing to the engine, and a commit writes the same values every time: both can be
// repeated without a reset. At the end the engine must be at the trainer's version.
#include "tools/bench/codec/stage_bench.h"

#include <cstring>

#include "common/base/check.h"
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/sender_side.h"
#include "tools/bench/measure/machine_limits.h"
#include "tools/bench/measure/timing.h"

namespace dws::bench {
namespace {

constexpr Bar kStageBar = AtMost(2);
constexpr Bar kSplitStageBar = AtMost(2.5);
constexpr Bar kCommitBar = AtMost(1.15);

std::string Threads(size_t threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

// The object that leads from the workload's first version to its second.
Result<RetainedVersionPtr> MakeObject(const Workload& workload, ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(workload.placement()));
  workload.FillBefore(sender->weights());
  sender->Capture(pool);
  sender->Seal();
  // Forward and back once, because class tables are made from earlier versions.
  for (const std::vector<uint16_t>* words :
       {&workload.changes().after, &workload.changes().before, &workload.changes().after}) {
    workload.Write(sender->weights(), *words);
    sender->Capture(pool, DeltaProfile::kWan);
  }
  return sender->Seal();
}

// Adds P4a for one number of threads.
Status BenchStaging(const Options& options, const Workload& workload, const ReceiverSide& receiver,
                    size_t threads, Report& report) {
  ThreadPool pool(threads - 1);
  const auto* words = reinterpret_cast<const uint16_t*>(receiver.weights().data());
  const std::span<const uint32_t> index = workload.changes().index;
  const uint32_t distance = BestGatherDistance(words, index, pool);
  Status status;
  StagedDelta staged;
  const std::vector<Contender> contenders = {
      {.run =
           [&] {
             Result<StagedDelta> result = receiver.Stage(pool);
             if (result.ok()) staged = *std::move(result);
             status.Update(result.status());
           },
       .prepare = [&] { staged = {}; }},
      {.run = [&] { GatherWords(words, index, distance, pool); }}};
  const std::vector<double> seconds = MedianSeconds(contenders, options.rounds);
  DWS_RETURN_IF_ERROR(status);
  report.Add({.id = "P4a",
              .what = fmt::format("stage; mode A; {:.2f} % changed; {}", workload.density() * 100,
                                  Threads(threads)),
              .ours = seconds[0] * 1e3,
              .reference = seconds[1] * 1e3,
              .ratio = seconds[0] / seconds[1],
              .unit = "ms",
              .bar = kStageBar});
  return OkStatus();
}

// Adds P4b for one number of threads: against reading all old weights once.
Status BenchSplitStaging(const Options& options, const Workload& workload,
                         const ReceiverSide& receiver, size_t threads, Report& report) {
  ThreadPool pool(threads - 1);
  std::vector<StreamPair> pieces;
  AppendPieces(receiver.weights(), receiver.weights(), pieces);
  for (StreamPair& piece : pieces) piece.b = {};
  Status status;
  StagedDelta staged;
  const std::vector<Contender> contenders = {{.run =
                                                  [&] {
                                                    Result<StagedDelta> result =
                                                        receiver.Stage(pool);
                                                    if (result.ok()) staged = *std::move(result);
                                                    status.Update(result.status());
                                                  },
                                              .prepare = [&] { staged = {}; }},
                                             {.run = [&] { ReadStreams(pieces, pool); }}};
  const std::vector<double> seconds = MedianSeconds(contenders, options.rounds);
  DWS_RETURN_IF_ERROR(status);
  report.Add({.id = "P4b",
              .what = fmt::format("stage; mode B; {:.2f} % changed; {}", workload.density() * 100,
                                  Threads(threads)),
              .ours = seconds[0] * 1e3,
              .reference = seconds[1] * 1e3,
              .ratio = seconds[0] / seconds[1],
              .unit = "ms",
              .bar = kSplitStageBar});
  return OkStatus();
}

// Adds P4c for one number of threads.
Status BenchCommit(const Options& options, const Workload& workload, const ReceiverSide& receiver,
                   size_t threads, Report& report) {
  ThreadPool pool(threads - 1);
  DWS_ASSIGN_OR_RETURN(const StagedDelta staged, receiver.Stage(pool));
  auto* words = reinterpret_cast<uint16_t*>(receiver.weights().data());
  const WordChanges& changes = workload.changes();
  ThreadPool best_pool(threads - 1);
  const Prefetch prefetch = BestScatterPrefetch(words, changes.index, changes.before, best_pool);
  const std::vector<Contender> contenders = {
      {.run = [&] { receiver.Commit(staged, pool); }},
      {.run = [&] { ScatterWords(words, changes.index, changes.after, prefetch, pool); }}};
  const std::vector<double> seconds = MedianSeconds(contenders, options.rounds);
  ScatterWords(words, changes.index, changes.before, prefetch, pool);
  report.Add({.id = "P4c",
              .what = fmt::format("commit; {:.2f} % changed; {}", workload.density() * 100,
                                  Threads(threads)),
              .ours = seconds[0] * 1e3,
              .reference = seconds[1] * 1e3,
              .ratio = seconds[0] / seconds[1],
              .unit = "ms",
              .bar = kCommitBar});
  return OkStatus();
}

}  // namespace

Status BenchStage(const Options& options, const Workload& workload, Report& report) {
  ThreadPool pool(1);
  DWS_ASSIGN_OR_RETURN(const RetainedVersionPtr version, MakeObject(workload, pool));
  DWS_ASSIGN_OR_RETURN(const auto receiver, ReceiverSide::Create(workload.placement()));
  workload.FillBefore(receiver->weights());
  DWS_RETURN_IF_ERROR(receiver->Receive(version->object, pool));
  for (const size_t threads : {1, 2}) {
    DWS_RETURN_IF_ERROR(BenchStaging(options, workload, *receiver, threads, report));
  }
  DWS_RETURN_IF_ERROR(receiver->Receive(SmallestObject(*version), pool));
  for (const size_t threads : {1, 2}) {
    DWS_RETURN_IF_ERROR(BenchSplitStaging(options, workload, *receiver, threads, report));
  }
  for (const size_t threads : {1, 2}) {
    DWS_RETURN_IF_ERROR(BenchCommit(options, workload, *receiver, threads, report));
  }

  DWS_ASSIGN_OR_RETURN(const StagedDelta staged, receiver->Stage(pool));
  receiver->Commit(staged, pool);
  DWS_ASSIGN_OR_RETURN(const CreatedRegion expected,
                       CreateHostRegion("bench-expected", workload.placement().size_bytes));
  workload.FillBefore(expected.region.mutable_bytes());
  workload.Write(expected.region.mutable_bytes(), workload.changes().after);
  if (std::memcmp(expected.region.bytes().data(), receiver->weights().data(),
                  receiver->weights().size()) != 0) {
    return DataLossError("the engine is not at the trainer's version after the commit");
  }
  return OkStatus();
}

}  // namespace dws::bench
