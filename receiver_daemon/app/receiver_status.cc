#include "receiver_daemon/app/receiver_status.h"

#include "common/base/check.h"
#include "common/proto_convert/convert.h"

namespace dws {
namespace {

// The fields are named as the stages.
void FillTimes(const VersionTimes& times, v1::VersionTimes& out) {
  out.set_total_seconds(ToSeconds(times.since_announced()));
  for (size_t i = 0; i < kVersionStages; ++i) {
    const char* const stage = NameOf(static_cast<VersionStage>(i));
    const auto* field = out.GetDescriptor()->FindFieldByName(fmt::format("{}_seconds", stage));
    DWS_CHECK(field != nullptr);
    out.GetReflection()->SetDouble(&out, field, ToSeconds(times.spent[i]));
  }
}

// Returns the changed elements of all; nullopt: no delta was fetched.
std::optional<double> DensityOf(const CommitReport& report) {
  if (report.delta_bytes == 0 || report.elements == 0) return std::nullopt;
  return static_cast<double>(report.nnz) / static_cast<double>(report.elements);
}

void FillLastCommit(const CommitReport& report, v1::LastCommit& commit) {
  commit.set_version(report.version.value());
  commit.set_fetched_bytes(report.delta_bytes + report.full_bytes);
  commit.set_full_bytes(report.model_bytes);
  commit.set_nnz(report.nnz);
  commit.set_elements(report.elements);
  commit.set_fetch_seconds(ToSeconds(report.fetch));
  commit.set_stage_seconds(ToSeconds(report.stage));
  commit.set_pause_seconds(ToSeconds(report.pause));
  commit.set_commit_seconds(ToSeconds(report.commit));
  commit.set_repaired(report.repaired);
  commit.set_unix_seconds(report.unix_seconds);
  FillTimes(report.times, *commit.mutable_times());
  if (const auto density = DensityOf(report); density.has_value()) {
    commit.set_density_ratio(*density);
  }
}

void FillScrub(const ScrubProgress& scrub, TimePoint now, v1::ReceiverStatus& status) {
  status.set_scrub_bytes_per_second_max(scrub.asked.bytes_per_second_max);
  status.set_scrub_passes(scrub.passes);
  status.set_scrubbed_bytes(scrub.bytes);
  status.set_scrub_last_pass_unix_seconds(scrub.last_pass_unix_seconds);
  const bool on = scrub.asked.bytes_per_second_max > 0;
  status.set_scrub_pass_seconds_target(on ? ToSeconds(scrub.asked.pass) : 0);
  status.set_scrub_pass_seconds_expected(ToSeconds(scrub.pass_expected));
  if (scrub.complete_since.has_value()) {
    status.set_scrub_age_seconds(ToSeconds(now - *scrub.complete_since));
  }
}

// What was counted since the start.
void FillTotals(const WorkerStatus& worker, v1::ReceiverStatus& status) {
  status.set_commits(worker.commits);
  status.set_repairs(worker.repairs);
  status.set_committed_full_bytes(worker.model_bytes);
  status.set_replaced_versions(worker.replaced);
  auto& fetched = *status.mutable_fetched_bytes();
  fetched["delta"] = worker.delta_bytes;
  fetched["full"] = worker.full_bytes;
  auto& early = *status.mutable_early_versions();
  early["staged"] = worker.early_staged;
  early["dropped"] = worker.early_dropped;
  // The reasons that alerts use are shown from the start, so a rate counts their first NACK too.
  auto& nacks = *status.mutable_nacks_by_reason();
  nacks["data_loss"] = 0;
  nacks["failed_precondition"] = 0;
  for (const auto& [reason, count] : worker.nacks) {
    nacks[reason] = count;
    status.set_nacks(status.nacks() + count);
  }
  auto& mismatches = *status.mutable_digest_mismatches();
  mismatches["delta"] = worker.mismatches.delta;
  mismatches["verify"] = worker.mismatches.verify;
  mismatches["scrub"] = worker.mismatches.scrub;
  mismatches["attach"] = worker.mismatches.attach;
  mismatches["write"] = worker.mismatches.write;
  mismatches["renumbered"] = worker.mismatches.renumbered;
}

void FillWorker(const WorkerStatus& worker, TimePoint now, v1::ReceiverStatus& status) {
  if (worker.live.has_value()) {
    *status.mutable_stream() = ToProto(worker.live->stream);
    status.set_committed_version(worker.live->version.value());
    *status.mutable_state_token() = ToProto(worker.state_token);
  }
  if (worker.target.has_value()) status.set_target_version(worker.target->value());
  status.set_stage(worker.stage);
  status.set_stage_done_bytes(worker.stage_done_bytes);
  status.set_stage_total_bytes(worker.stage_total_bytes);
  status.set_staging_bytes(worker.staging_bytes);
  status.set_staging_bytes_max(worker.staging_bytes_max);
  status.set_seconds_without_sender(worker.seconds_without_sender);
  status.set_stale(!worker.stale.empty());
  status.set_seconds_since_version(worker.seconds_since_version);
  status.set_commit_policy(ToString(worker.commit_policy));
  status.set_held_seconds(worker.held_seconds);
  status.set_versions_behind_max(worker.commit_policy.max_behind);
  status.set_engine_paused(worker.paused_since.has_value());
  status.set_engine_paused_seconds(ToSeconds(now - worker.paused_since.value_or(now)));
  if (worker.last_commit.has_value()) {
    status.set_last_pause_seconds(ToSeconds(worker.last_commit->pause));
    FillLastCommit(*worker.last_commit, *status.mutable_last_commit());
  }
}

const char* NameOf(GroupMemberState::Phase phase) {
  switch (phase) {
    case GroupMemberState::Phase::kIdle:
      return "idle";
    case GroupMemberState::Phase::kStaging:
      return "staging";
    case GroupMemberState::Phase::kStaged:
      return "staged";
    case GroupMemberState::Phase::kWriting:
      return "writing";
  }
  return "";
}

const char* NameOf(GroupLeaderState::Phase phase) {
  switch (phase) {
    case GroupLeaderState::Phase::kStaging:
      return "staging";
    case GroupLeaderState::Phase::kDeciding:
      return "deciding";
    case GroupLeaderState::Phase::kPausing:
      return "pausing";
    case GroupLeaderState::Phase::kCommitting:
      return "committing";
    case GroupLeaderState::Phase::kHeld:
      return "held";
  }
  return "";
}

}  // namespace

v1::CommittedVersion HistoryRow(const CommitReport& report) {
  v1::CommittedVersion row;
  row.set_version(report.version.value());
  row.set_unix_seconds(report.unix_seconds);
  row.set_fetched_bytes(report.delta_bytes + report.full_bytes);
  row.set_full_bytes(report.model_bytes);
  if (const auto density = DensityOf(report); density.has_value()) row.set_density_ratio(*density);
  row.set_fetch_seconds(ToSeconds(report.fetch));
  row.set_stage_seconds(ToSeconds(report.stage));
  row.set_commit_seconds(ToSeconds(report.commit));
  row.set_pause_seconds(ToSeconds(report.pause));
  row.set_total_seconds(ToSeconds(report.times.since_announced()));
  row.set_repaired(report.repaired);
  return row;
}

void FillGroupStatus(const CommitGroup& group, v1::GroupStatus& status) {
  const GroupPlace& place = group.place();
  const GroupView view = group.view();
  DWS_CHECK(view.members.empty() || view.members.size() == place.member_count);
  status.set_group_id(place.group_id);
  status.set_member_index(place.index);
  status.set_member_count(place.member_count);
  status.set_leader_address(place.leader_address);
  status.set_leader_connected(view.leader_connected);
  status.set_last_error(view.last_error);
  status.set_phase(view.ended ? "ended" : NameOf(view.phase));
  if (view.round.has_value()) {
    status.set_round_phase(NameOf(view.round->phase));
    status.set_round_version(view.round->target.version.value());
  }
  if (view.decided.has_value()) status.set_decided_version(view.decided->version.value());
  for (const GroupView::Member& member : view.members) {
    v1::GroupMember& row = *status.add_members();
    row.set_receiver_id(member.receiver_id);
    row.set_connected(member.connected);
    row.set_attached(member.attached);
    if (member.live.has_value()) row.set_live_version(member.live->version.value());
    row.set_staged(member.staged);
    row.set_released(member.released);
    row.set_last_error(member.last_error);
  }
}

void FillBroadcasts(const SyncLinks::Broadcasts& totals, v1::ReceivedBroadcasts& status) {
  status.set_members(static_cast<uint32_t>(totals.joined));
  status.set_broadcasts(totals.received);
  status.set_failed(totals.failed);
  status.set_received_bytes(totals.received_bytes);
}

void FillHostShare(const HostShare::Totals& totals, v1::HostShareStatus& status) {
  status.set_read_bytes(totals.read_bytes);
  status.set_written_bytes(totals.written_bytes);
  status.set_failures(totals.failures);
}

// Works on copies of the parts' states, so a slow caller of status holds no lock of theirs.
void FillReceiverStatus(const std::string& receiver_id, const WorkerStatus& worker,
                        const Subscription& subscription, const EngineRegistry& registry,
                        const SourceChain& sources, TimePoint now, v1::ReceiverStatus& status) {
  status.set_receiver_id(receiver_id);
  FillWorker(worker, now, status);
  FillTotals(worker, status);
  if (const auto followed = subscription.stream(); !status.has_stream() && followed.has_value()) {
    *status.mutable_stream() = ToProto(*followed);
  }
  FillScrub(worker.scrub, now, status);
  const NewestOffered newest = FindNewestOffered(worker, subscription);
  for (const Subscription::Peer& peer : subscription.Peers()) {
    v1::SenderPeer& sender = *status.add_senders();
    sender.set_address(peer.address);
    sender.set_connected(peer.connected);
    if (peer.trainer_rank.has_value()) sender.set_trainer_rank(peer.trainer_rank->value());
    if (peer.newest.has_value()) sender.set_newest_version(peer.newest->value());
    sender.set_last_error(peer.last_error);
    const SenderIndex index(static_cast<uint32_t>(status.senders_size() - 1));
    const SourceChain::Last full = sources.last(index, Content::kFull);
    sender.set_full_way(full.detail.empty() ? full.source : full.source + " " + full.detail);
    sender.set_full_way_reason(full.reason);
    const SourceChain::Last delta = sources.last(index, Content::kDelta);
    sender.set_delta_source(delta.source);
    sender.set_delta_source_reason(delta.reason);
  }
  status.set_newest_version(newest.version);
  if (newest.lag_known) status.set_version_lag(newest.lag);
  status.set_engine_ranks_expected(registry.expected_ranks());
  for (const EngineRegistry::RankState& rank : registry.Ranks()) {
    v1::EngineRankStatus& engine = *status.add_engine_ranks();
    engine.set_engine_rank(rank.engine_rank);
    engine.set_attached(rank.attached);
    engine.set_generating(rank.lease == EngineLease::State::kRunning);
    engine.set_generation(rank.generation.value());
    engine.set_client(rank.client);
    for (const std::string& memory : rank.memory) engine.add_memory(memory);
  }
  for (const SourceChain::Total& total : sources.totals()) {
    v1::SourceBytes& source = *status.add_sources();
    source.set_content(std::string(ToString(total.content)));
    source.set_source(std::string(total.source));
    source.set_size_bytes(total.bytes);
  }
}

}  // namespace dws
