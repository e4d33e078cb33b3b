#include "receiver_daemon/app/receiver_metrics.h"

#include <algorithm>
#include <map>

namespace dws {
namespace {

double Number(uint64_t value) { return static_cast<double>(value); }

void ShowTotals(Scrape& scrape, const WorkerStatus& worker) {
  scrape.Counter("dws_receiver_commits_total", "Versions committed.", Number(worker.commits));
  scrape.Counter("dws_receiver_repairs_total", "Commits that took some tensors in full.",
                 Number(worker.repairs));
  scrape.Counter("dws_receiver_full_bytes_total",
                 "Size that all committed versions would have had as full tensors, in bytes.",
                 Number(worker.model_bytes));
  constexpr const char* kFetched = "Bytes fetched for committed versions.";
  scrape.Counter("dws_receiver_fetched_bytes_total", kFetched, Number(worker.delta_bytes),
                 {{"kind", "delta"}});
  scrape.Counter("dws_receiver_fetched_bytes_total", kFetched, Number(worker.full_bytes),
                 {{"kind", "full"}});
  // The reasons that alerts use are shown from the start, so a rate counts their first NACK too.
  std::map<std::string, uint64_t> nacks = {{"data_loss", 0}, {"failed_precondition", 0}};
  for (const auto& [reason, count] : worker.nacks) nacks[reason] = count;
  for (const auto& [reason, count] : nacks) {
    scrape.Counter("dws_receiver_nacks_total", "Refusals, by status code.", Number(count),
                   {{"reason", reason}});
  }
  const MismatchCounts& mismatches = worker.mismatches;
  const std::map<std::string, uint64_t> by_source = {
      {"delta", mismatches.delta}, {"verify", mismatches.verify},
      {"scrub", mismatches.scrub}, {"attach", mismatches.attach},
      {"write", mismatches.write}, {"renumbered", mismatches.renumbered}};
  for (const auto& [source, count] : by_source) {
    scrape.Counter("dws_receiver_digest_mismatches_total",
                   "Slices that did not match their digest, by the check that found it.",
                   Number(count), {{"source", source}});
  }
}

void ShowScrub(Scrape& scrape, const ScrubProgress& scrub, TimePoint now) {
  scrape.Counter("dws_receiver_scrubbed_bytes_total",
                 "Live memory read again in the background and compared.", Number(scrub.bytes));
  scrape.Gauge("dws_receiver_scrub_last_pass_timestamp_seconds",
               "When the last pass over live memory ended, in seconds since 1970; 0: not yet.",
               scrub.last_pass_unix_seconds);
  const bool on = scrub.asked.bytes_per_second_max > 0;
  scrape.Gauge("dws_receiver_scrub_pass_target_seconds",
               "--scrub-pass: the time in which all live memory is to be read; 0: no scrub.",
               on ? ToSeconds(scrub.asked.pass) : 0);
  scrape.Gauge("dws_receiver_scrub_pass_expected_seconds",
               "How long a pass over this engine takes, as --scrub-rate allows; 0: not known.",
               ToSeconds(scrub.pass_expected));
  scrape.Gauge("dws_receiver_scrub_pass_age_seconds",
               "Time since the last pass ended, or since the first pass over this engine began.",
               scrub.complete_since.has_value() ? ToSeconds(now - *scrub.complete_since) : 0);
}

void ShowStaleness(Scrape& scrape, const WorkerStatus& worker) {
  scrape.Gauge("dws_receiver_seconds_without_sender",
               "How long some trainer rank has had no accepted sender; 0: each has one.",
               worker.seconds_without_sender);
  scrape.Gauge("dws_receiver_seconds_since_version",
               "Time since the engine's version last changed, or since the start.",
               worker.seconds_since_version);
}

void ShowHeld(Scrape& scrape, const WorkerStatus& worker) {
  scrape.Gauge("dws_receiver_held_seconds",
               "How long --commit-policy has held staged versions back; 0: none is held.",
               worker.held_seconds);
  scrape.Gauge("dws_receiver_versions_behind_max",
               "K of --commit-policy=max-behind:K; 0: another policy.",
               Number(worker.commit_policy.max_behind));
  scrape.Counter("dws_receiver_replaced_total",
                 "Versions that were staged, and replaced by newer ones before a commit.",
                 Number(worker.replaced));
  constexpr const char* kEarly =
      "Versions that were read while the trainer's ranks captured them: staged when they were "
      "published, or dropped before, to be read once they are.";
  scrape.Counter("dws_receiver_early_versions_total", kEarly, Number(worker.early_staged),
                 {{"outcome", "staged"}});
  scrape.Counter("dws_receiver_early_versions_total", kEarly, Number(worker.early_dropped),
                 {{"outcome", "dropped"}});
}

void ShowWorker(Scrape& scrape, const WorkerStatus& worker, TimePoint now) {
  scrape.Gauge("dws_receiver_staging_bytes", "Memory that holds fetched and staged weights now.",
               Number(worker.staging_bytes));
  scrape.Gauge("dws_receiver_staging_bytes_max", "--staging-bytes.",
               Number(worker.staging_bytes_max));
  scrape.Gauge("dws_receiver_engine_paused",
               "1 while the engine is attached and has no version it may generate with.",
               worker.paused_since.has_value() ? 1 : 0);
  scrape.Gauge("dws_receiver_engine_paused_seconds", "How long it has been paused; 0: it is not.",
               worker.paused_since.has_value() ? ToSeconds(now - *worker.paused_since) : 0);
  const CommitReport last = worker.last_commit.value_or(CommitReport());
  scrape.Gauge("dws_receiver_last_commit_timestamp_seconds",
               "When a version was last committed, in seconds since 1970; 0: not yet.",
               last.unix_seconds);
  if (last.delta_bytes > 0 && last.elements > 0) {
    scrape.Gauge("dws_receiver_density_ratio", "Changed elements of the last delta, of all.",
                 Number(last.nnz) / Number(last.elements));
  }
}

void ShowVersions(Scrape& scrape, const WorkerStatus& worker, const Subscription& subscription) {
  const NewestOffered newest = FindNewestOffered(worker, subscription);
  const std::vector<Subscription::Peer> peers = subscription.Peers();
  const auto connected =
      std::count_if(peers.begin(), peers.end(), [](const auto& peer) { return peer.connected; });
  const uint64_t committed = worker.live.has_value() ? worker.live->version.value() : 0;
  scrape.Gauge("dws_receiver_committed_version", "The version the engine has; 0: none.",
               Number(committed));
  scrape.Gauge("dws_receiver_newest_version", "The newest version a connected sender offers.",
               Number(newest.version));
  if (newest.lag_known) {
    scrape.Gauge("dws_receiver_version_lag",
                 "How far the engine's version is behind the newest that was heard of.",
                 Number(newest.lag));
  }
  constexpr const char* kHelp = "Senders: --sender, and those of them that are connected.";
  scrape.Gauge("dws_receiver_senders", kHelp, static_cast<double>(connected),
               {{"state", "connected"}});
  scrape.Gauge("dws_receiver_senders", kHelp, Number(peers.size()), {{"state", "configured"}});
}

void ShowEngine(Scrape& scrape, const EngineRegistry& registry) {
  const std::vector<EngineRegistry::RankState> ranks = registry.Ranks();
  const auto attached =
      std::count_if(ranks.begin(), ranks.end(), [](const auto& rank) { return rank.attached; });
  constexpr const char* kHelp = "Engine ranks: those of the engine, and those that are attached.";
  scrape.Gauge("dws_receiver_engine_ranks", kHelp, static_cast<double>(attached),
               {{"state", "attached"}});
  scrape.Gauge("dws_receiver_engine_ranks", kHelp, registry.expected_ranks(),
               {{"state", "expected"}});
}

void ShowGroup(Scrape& scrape, const CommitGroup& group) {
  const GroupView view = group.view();
  scrape.Gauge("dws_receiver_group_leader_connected",
               "1 while a commit group's member has its leader, the leader itself always.",
               view.leader_connected ? 1 : 0);
  if (!group.place().leads()) return;
  const auto connected = std::count_if(view.members.begin(), view.members.end(),
                                       [](const auto& member) { return member.connected; });
  constexpr const char* kHelp =
      "Members of the commit group that this receiver leads: those connected, and all.";
  scrape.Gauge("dws_receiver_group_members", kHelp, static_cast<double>(connected),
               {{"state", "connected"}});
  scrape.Gauge("dws_receiver_group_members", kHelp, group.place().member_count,
               {{"state", "configured"}});
}

}  // namespace

ReceiverMetrics::ReceiverMetrics(const std::string& job_id, const std::string& receiver_id)
    : registry_({{"dws_job", job_id}, {"receiver_id", receiver_id}}),
      fetch_seconds_(registry_.AddHistogram("dws_receiver_fetch_seconds",
                                            "Fetching a version, of the slowest trainer rank.",
                                            buckets::kStageSeconds)),
      stage_seconds_(registry_.AddHistogram(
          "dws_receiver_stage_seconds",
          "Verifying and staging a fetched version, of the slowest trainer rank.",
          buckets::kStageSeconds)),
      commit_seconds_(registry_.AddHistogram(
          "dws_receiver_commit_seconds", "Intent, pause, write, resume.", buckets::kStageSeconds)),
      pause_seconds_(registry_.AddHistogram(
          "dws_receiver_pause_seconds", "How long a commit stopped an engine that was generating.",
          buckets::kStallSeconds)) {
  for (size_t i = 0; i < kVersionStages; ++i) {
    version_seconds_.push_back(registry_.AddHistogram(
        "dws_receiver_version_seconds",
        "Time of a version by stage, from its announcement until the senders know of its commit.",
        buckets::kStallSeconds, {{"stage", NameOf(static_cast<VersionStage>(i))}}));
  }
}

void ReceiverMetrics::OnCommit(const CommitReport& report) {
  fetch_seconds_.Observe(ToSeconds(report.fetch));
  stage_seconds_.Observe(ToSeconds(report.stage));
  commit_seconds_.Observe(ToSeconds(report.commit));
  // An engine that was already paused did not stop for this commit alone.
  if (report.pause > Duration::zero()) pause_seconds_.Observe(ToSeconds(report.pause));
  for (size_t i = 0; i < kVersionStages; ++i) {
    const bool known = static_cast<VersionStage>(i) != VersionStage::kAcknowledge;
    if (known) version_seconds_[i].Observe(ToSeconds(report.times.spent[i]));
  }
}

void ReceiverMetrics::OnAcknowledged(Duration took) {
  version_seconds_[static_cast<size_t>(VersionStage::kAcknowledge)].Observe(ToSeconds(took));
}

void ReceiverMetrics::Show(States states) {
  registry_.OnCollect([states](Scrape& scrape) {
    const WorkerStatus worker = states.worker.status();
    ShowTotals(scrape, worker);
    ShowWorker(scrape, worker, states.clock.Now());
    ShowScrub(scrape, worker.scrub, states.clock.Now());
    ShowStaleness(scrape, worker);
    ShowHeld(scrape, worker);
    ShowVersions(scrape, worker, states.subscription);
    ShowEngine(scrape, states.registry);
    if (states.group != nullptr) ShowGroup(scrape, *states.group);
  });
}

}  // namespace dws
