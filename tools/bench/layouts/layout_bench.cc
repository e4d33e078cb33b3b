// Measures what daemons do with layouts, by their own code, for the shapes of published models
// between 256 trainer ranks and 128 engine ranks; and how evenly trainer ranks send full weights
// then.
//
//   each sender    makes the layout that its rank declares, and another with the engines' cuts
//   each receiver  makes one layout of all ranks, finds the cuts that its views lack, makes the
//                  finer layout, maps its views, finds which slices of each rank its engine holds
//
// CSV on stdout, a table with the bars on stderr.
#include <fmt/format.h>
#include <sys/resource.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <map>
#include <numeric>
#include <set>

#include "common/base/check.h"
#include "common/base/clock.h"
#include "common/model/refinement.h"
#include "proto/admin.pb.h"
#include "receiver_daemon/app/receiver_plan.h"
#include "receiver_daemon/weights/engine_weights.h"
#include "tools/bench/layouts/layout_job.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/timing.h"

namespace dws::bench {
namespace {

constexpr double kSecondsMax = 1;
constexpr double kGibMax = 1;
constexpr double kBalanceMax = 1.02;

using Layouts = std::vector<std::shared_ptr<const RankLayout>>;

class Stopwatch {
 public:
  double seconds() const { return ToSeconds(clock_.Now() - begin_); }

 private:
  RealClock clock_;
  TimePoint begin_ = clock_.Now();
};

// Bytes of full weights that receivers take.
struct Sent {
  std::vector<uint64_t> by_rank;     // of the trainer
  std::vector<uint64_t> by_holders;  // of slices by who has them, as LayoutJob::holders
};

struct Times {
  std::vector<double> senders;
  std::vector<double> receivers;
};

class Daemons {
 public:
  explicit Daemons(const LayoutJob& job) : job_(job), times_{}, sent_{} {
    sent_.by_rank.resize(job.trainer.size());
    sent_.by_holders.resize(job.holders.size());
    times_.senders.resize(job.trainer.size());
    times_.receivers.resize(receivers());
  }

  Status Run() {
    DWS_RETURN_IF_ERROR(Declare());
    CutWishes wishes;
    for (size_t i = 0; i < receivers(); ++i) DWS_RETURN_IF_ERROR(Wish(i, wishes));
    DWS_RETURN_IF_ERROR(Refine(wishes));
    for (size_t i = 0; i < receivers(); ++i) DWS_RETURN_IF_ERROR(Map(i));
    return OkStatus();
  }

  size_t receivers() const { return job_.engines * job_.engine.size() / job_.host_ranks; }
  const Times& times() const { return times_; }
  const Sent& sent() const { return sent_; }
  uint64_t model_bytes() const {
    uint64_t bytes = 0;
    for (const auto& layout : layouts_) bytes += layout->size_bytes();
    return bytes;
  }

 private:
  std::span<const LayoutJob::EngineRank> RanksOf(size_t receiver) const {
    const size_t first = receiver * job_.host_ranks % job_.engine.size();
    return std::span(job_.engine).subspan(first, job_.host_ranks);
  }

  Status Declare() {
    for (size_t rank = 0; rank < job_.trainer.size(); ++rank) {
      std::vector<Shard> shards = job_.trainer[rank].shards;  // as they come in a message
      const Stopwatch stopwatch;
      DWS_ASSIGN_OR_RETURN(RankLayout layout, RankLayout::Create(std::move(shards)));
      layouts_.push_back(std::make_shared<const RankLayout>(std::move(layout)));
      times_.senders[rank] += stopwatch.seconds();
    }
    return OkStatus();
  }

  Status Wish(size_t receiver, CutWishes& wishes) {
    Layouts layouts = layouts_;
    const Stopwatch stopwatch;
    DWS_ASSIGN_OR_RETURN(const LayoutSetPtr set, LayoutSet::Create(std::move(layouts)));
    CutWishes missing;
    for (const LayoutJob::EngineRank& rank : RanksOf(receiver)) {
      Merge(missing, MissingCuts(*set, rank.views));
    }
    times_.receivers[receiver] += stopwatch.seconds();
    Merge(wishes, missing);
    return OkStatus();
  }

  Status Refine(const CutWishes& wishes) {
    for (size_t rank = 0; rank < layouts_.size(); ++rank) {
      const Stopwatch stopwatch;
      DWS_ASSIGN_OR_RETURN(RankLayout finer, Refined(*layouts_[rank], wishes));
      layouts_[rank] = std::make_shared<const RankLayout>(std::move(finer));
      times_.senders[rank] += stopwatch.seconds();
    }
    return OkStatus();
  }

  Status Map(size_t receiver) {
    AttachedEngine engine;
    for (const LayoutJob::EngineRank& rank : RanksOf(receiver)) {
      auto memory = std::make_shared<AttachedMemory>();
      memory->engine_rank = static_cast<uint32_t>(engine.memory.size());
      // Nobody touches it, so it takes no memory.
      DWS_ASSIGN_OR_RETURN(CreatedRegion region, CreateHostRegion("engine", rank.region_bytes));
      memory->handed->regions.emplace_back(std::move(region.region));
      attached_.push_back(memory);
      engine.memory.push_back(std::move(memory));
    }
    Layouts layouts = layouts_;
    const Stopwatch stopwatch;
    DWS_ASSIGN_OR_RETURN(engine.layouts, LayoutSet::Create(std::move(layouts)));
    for (size_t i = 0; i < engine.memory.size(); ++i) {
      const LayoutJob::EngineRank& rank = RanksOf(receiver)[i];
      DWS_ASSIGN_OR_RETURN(
          attached_[i]->mapping,
          MapEngine(*engine.layouts, rank.views, std::span(&rank.region_bytes, 1), rank.excluded));
    }
    DWS_ASSIGN_OR_RETURN(const EngineWeightsPtr weights,
                         EngineWeights::Create(engine.layouts, engine.memory, Coverage::kShare));
    times_.receivers[receiver] += stopwatch.seconds();
    attached_.clear();
    Count(engine, *weights);
    return OkStatus();
  }

  // What the receiver takes, as its plan says and as the slices say that it fetches.
  void Count(const AttachedEngine& engine, const EngineWeights& weights) {
    v1::PlanReply reply;
    FillPlan(engine, {}, reply);
    std::vector<uint64_t> taken(layouts_.size(), 0);
    for (uint32_t r = 0; r < layouts_.size(); ++r) {
      const RankLayout& layout = *layouts_[r];
      for (uint32_t s = 0; s < layout.slice_count(); ++s) {
        if (!weights.Holds(dws::TrainerRank(r), RankSlice(s))) continue;
        const RankLayout::SliceEntry& slice = layout.slice(RankSlice(s));
        taken[r] += slice.size_bytes();
        sent_.by_holders[job_.trainer[r].holders[slice.shard]] += slice.size_bytes();
      }
    }
    for (const v1::PlanBytes& row : reply.taken()) {
      DWS_CHECK(taken[row.trainer_rank()] == row.size_bytes());
      sent_.by_rank[row.trainer_rank()] += row.size_bytes();
    }
  }

  const LayoutJob& job_;
  Layouts layouts_;
  std::vector<std::shared_ptr<AttachedMemory>> attached_;  // those of the receiver that maps
  Times times_;
  Sent sent_;
};

// Bytes that the busiest trainer rank cannot send less than, however ranks that have the same
// divide it: of any k ranks, what only they have divided by k. Tried for the k busiest, for each k.
double LeastOfBusiest(const LayoutJob& job, const Sent& sent) {
  std::vector<uint32_t> order(sent.by_rank.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(),
                   [&](uint32_t a, uint32_t b) { return sent.by_rank[a] > sent.by_rank[b]; });
  std::vector<size_t> place(order.size());
  for (size_t i = 0; i < order.size(); ++i) place[order[i]] = i;
  std::vector<uint64_t> only(order.size(),
                             0);  // that the first k + 1 ranks have, and not the first k
  for (size_t i = 0; i < job.holders.size(); ++i) {
    size_t last = 0;
    for (const uint32_t rank : job.holders[i]) last = std::max(last, place[rank]);
    only[last] += sent.by_holders[i];
  }
  double least = 0;
  uint64_t bytes = 0;
  for (size_t k = 0; k < only.size(); ++k) {
    bytes += only[k];
    least = std::max(least, static_cast<double>(bytes) / static_cast<double>(k + 1));
  }
  return least;
}

void ReportTimes(const LayoutJob& job, const Times& times, Report& report) {
  const auto add = [&](const std::string& what, double ours, std::optional<Bar> bar) {
    report.Add({.id = "P19",
                .what = fmt::format("{}: {}", job.model, what),
                .ours = ours,
                .reference = kSecondsMax,
                .ratio = ours / kSecondsMax,
                .unit = "s",
                .bar = bar});
  };
  const double sender = *std::max_element(times.senders.begin(), times.senders.end());
  const double receiver = Median(times.receivers);
  add("layouts; the slowest sender and then the median receiver", sender + receiver, AtMost(1));
  double all = std::accumulate(times.senders.begin(), times.senders.end(), 0.0);
  all = std::accumulate(times.receivers.begin(), times.receivers.end(), all);
  add(fmt::format("all {} senders and {} receivers one after the other", times.senders.size(),
                  times.receivers.size()),
      all, std::nullopt);
  add("a trainer process divides what several have", job.shares_seconds, std::nullopt);
}

void ReportBytes(const LayoutJob& job, const Daemons& daemons, Report& report) {
  const Sent& sent = daemons.sent();
  const auto most =
      static_cast<double>(*std::max_element(sent.by_rank.begin(), sent.by_rank.end()));
  const auto all =
      static_cast<double>(std::accumulate(sent.by_rank.begin(), sent.by_rank.end(), uint64_t{0}));
  const double mean = all / static_cast<double>(sent.by_rank.size());
  const double least = LeastOfBusiest(job, sent);
  constexpr double kGiB = 1 << 30;
  const auto add = [&](const std::string& what, double ours, double reference,
                       std::optional<Bar> bar) {
    report.Add({.id = "P20",
                .what = fmt::format("{}: {}", job.model, what),
                .ours = ours / kGiB,
                .reference = reference / kGiB,
                .ratio = ours / reference,
                .unit = "GiB",
                .bar = bar});
  };
  add("the busiest trainer rank against the least it can send", most, least, AtMost(kBalanceMax));
  add("the busiest trainer rank against the mean", most, mean, std::nullopt);
  const auto model = static_cast<double>(daemons.model_bytes());
  const auto ranks = static_cast<double>(job.engines * job.engine.size());
  add("all that is sent against all weights to each engine rank (ep x P)", all, model * ranks,
      std::nullopt);
}

Status Measure(const std::string& path, Report& report) {
  DWS_ASSIGN_OR_RETURN(const LayoutJob job, ReadLayoutJob(path));
  Daemons daemons(job);
  DWS_RETURN_IF_ERROR(Annotate(daemons.Run(), job.model));
  ReportTimes(job, daemons.times(), report);
  ReportBytes(job, daemons, report);
  return OkStatus();
}

Status Run(const std::vector<std::string>& paths) {
  Report report;
  for (const std::string& path : paths) DWS_RETURN_IF_ERROR(Measure(path, report));
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const double gib = static_cast<double>(usage.ru_maxrss) / (1 << 20);  // it is in KiB
  report.Add({.id = "P19",
              .what = "memory of this process at its peak; all senders and one receiver",
              .ours = gib,
              .reference = kGibMax,
              .ratio = gib / kGibMax,
              .unit = "GiB",
              .bar = AtMost(1)});
  report.PrintTable();
  return OkStatus();
}

int Main(int argc, char** argv) {
  std::vector<std::string> paths;
  CLI::App app(
      "Measures layouts. CSV on stdout (id,case,ours,reference,ratio,unit), a table with the bars "
      "on "
      "stderr.",
      "tools/bench.sh mesh");
  app.add_option("jobs", paths, "Files of write_jobs.py")->required();
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(paths);
  if (status.ok()) return 0;
  fmt::print(stderr, "mesh: {}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
