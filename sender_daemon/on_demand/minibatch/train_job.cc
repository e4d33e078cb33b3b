// The record is saved before the report that tells of it is sent; everything else may be lost, and
// is said again.
#include "sender_daemon/on_demand/minibatch/train_job.h"

#include <algorithm>
#include <cctype>
#include <cstring>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/base/log/log.h"
#include "common/base/printable.h"
#include "common/proto_convert/convert.h"
#include "common/proto_convert/train_convert.h"

namespace dws {
namespace {

constexpr TrainerRank kLeader(0);

v1::MinibatchView::Phase ToProto(MinibatchMemberState::Phase phase) {
  switch (phase) {
    case MinibatchMemberState::Phase::kJoining:
      return v1::MinibatchView::PHASE_JOINING;
    case MinibatchMemberState::Phase::kOpen:
      return v1::MinibatchView::PHASE_OPEN;
    case MinibatchMemberState::Phase::kLost:
      return v1::MinibatchView::PHASE_LOST;
    case MinibatchMemberState::Phase::kSealed:
      return v1::MinibatchView::PHASE_SEALED;
    case MinibatchMemberState::Phase::kStepped:
      return v1::MinibatchView::PHASE_STEPPED;
    case MinibatchMemberState::Phase::kToBeSkipped:
      return v1::MinibatchView::PHASE_TO_BE_SKIPPED;
  }
  return v1::MinibatchView::PHASE_UNSPECIFIED;
}

std::string PhaseText(MinibatchMemberState::Phase phase) {
  std::string text = v1::MinibatchView::Phase_Name(ToProto(phase)).substr(6);  // "PHASE_"
  std::ranges::transform(text, text.begin(),
                         [](unsigned char c) { return c == '_' ? ' ' : std::tolower(c); });
  return text;
}

std::optional<TrainerRank> CombinedFor(const v1::TrainMessage& message) {
  if (!message.has_combined_for()) return std::nullopt;
  return TrainerRank(message.combined_for());
}

// A leader that dies here has told some members, and others not.
void BeforeOrder(const TrainDown& order) {
  if (std::holds_alternative<TrainAsk>(order.what)) {
    DWS_KILLPOINT("sender.train.before_ask");
  } else if (std::holds_alternative<AbandonDecision>(order.what)) {
    DWS_KILLPOINT("sender.train.before_abandon");
  } else {
    DWS_KILLPOINT("sender.train.before_step");
  }
}

// A sender that dies here has told some owners, and others not.
void BeforePush(const v1::TrainMessage& message) {
  if (message.has_offer()) {
    DWS_KILLPOINT("sender.train.before_offer");
  } else {
    DWS_KILLPOINT("sender.train.before_finish");
  }
}

// The record is saved, and nobody was told. `opened`: the attempt whose pieces are taken.
void AfterRecord(const MemberRecord& record, const std::optional<AttemptId>& opened) {
  if (!record.attempt.has_value()) return;
  if (record.step.has_value()) {
    DWS_KILLPOINT("sender.train.after_stepped");
  } else if (record.sealed.has_value()) {
    DWS_KILLPOINT("sender.train.after_sealed");
  } else if (opened.has_value() && opened->minibatch < record.attempt->minibatch) {
    DWS_KILLPOINT("sender.train.after_released");
  } else {
    DWS_KILLPOINT("sender.train.after_open");
  }
}

std::string Ranks(const std::vector<TrainerRank>& ranks) {
  std::string text;
  for (const TrainerRank rank : ranks) {
    if (text.size() > 100) return text + ", ...";
    text += fmt::format("{}{}", text.empty() ? "" : ", ", rank.value());
  }
  return text;
}

}  // namespace

TrainJob::TrainJob(Identity identity, Outputs outputs, TimePoint now)
    : identity_(std::move(identity)), outputs_(std::move(outputs)), report_at_(now) {
  if (identity_.rank == kLeader) {
    leader_.emplace(identity_.job.world_size, LeaderTerm(identity_.epoch.value()),
                    identity_.peer_timeout, now);
  }
  shard_ = std::make_unique<OwnedShard>(
      OwnedShard::Options{.stream = identity_.job.stream,
                          .ranks = identity_.job.world_size,
                          .units = static_cast<uint32_t>(identity_.shards.size())},
      [this](TrainerRank to, const TrainBody& body) { outputs_.down(to, identity_.Address(body)); },
      outputs_.work);
  if (identity_.accumulate_bytes == 0) return;
  host_sums_ = std::make_unique<HostSums>(
      HostSums::Options{.stream = identity_.job.stream,
                        .self = identity_.rank,
                        .ranks = identity_.job.world_size,
                        .bytes_max = identity_.accumulate_bytes,
                        .exact = identity_.exact,
                        .shards = identity_.shards,
                        .pushed = identity_.pushed},
      HostSums::Outputs{.send =
                            [this](TrainerRank to, TrainerRank owner, const TrainBody& body) {
                              v1::TrainMessage message = identity_.Address(body);
                              message.set_combined_for(owner.value());
                              outputs_.down(to, std::move(message));
                            },
                        .work = outputs_.combined_work,
                        .hosts = outputs_.hosts});
}

void TrainJob::Identity::Address(v1::TrainMessage& message,
                                 const std::optional<PieceRoute>& route) const {
  *message.mutable_stream() = ToProto(job.stream);
  message.set_world_size(job.world_size);
  *message.mutable_units() = ToProto(common);
  if (route.has_value() && route->to != route->owner) {
    message.set_combined_for(route->owner.value());
  }
}

v1::TrainMessage TrainJob::Identity::Address(const TrainBody& body) const {
  v1::TrainMessage message;
  Address(message);
  FillBody(body, message);
  return message;
}

Status TrainJob::Join(WeightVersion version, std::string process,
                      std::shared_ptr<RankMemory> memory) {
  // What an earlier process of this sender has left with the rank. Always read: what is saved next
  // has to be newer.
  const std::optional<v1::TrainMessage> left = memory->record().Load();
  if (!member_.has_value()) {
    std::optional<MemberRecord> record;
    if (left.has_value() && identity_.Check(identity_.rank, *left).ok()) {
      DWS_ASSIGN_OR_RETURN(record, FromProto(left->report().record()));
    }
    member_.emplace(identity_.rank, identity_.epoch, record);
    opened_ = member_->record().attempt;  // its gradient stays as it is
  }
  DWS_KILLPOINT("sender.train.after_load");
  // It may have published what Step asked for to a process of this sender that is gone.
  const WeightVersion held = member_->record().version;
  const bool published = version > held && MayPublish(version).ok();
  const WeightVersion known = published ? held : version;
  DWS_RETURN_IF_ERROR(MinibatchMemberState(*member_).OnRank(known));  // before anything changes
  Leave();
  DWS_RETURN_IF_ERROR(member_->OnRank(known));
  if (published) OnPublished(version);
  if (memory_ != nullptr && member_->record().sealed.has_value()) {
    const MutableByteSpan to = memory->gradients();
    DWS_CHECK(to.size() == memory_->gradients().size());  // CheckJoins
    std::memmove(to.data(), memory_->gradients().data(), to.size());
  }
  memory_ = std::move(memory);
  process_ = std::move(process);
  pushed_ = std::make_unique<PushedPieces>(memory_, identity_.job.world_size);
  // No process of the rank has done anything in it, else it would be lost.
  if (member_->open() && opened_ == member_->record().attempt) pushed_->Open(*opened_);
  Save();
  return OkStatus();
}

void TrainJob::Leave() { member_->OnRankLost(process_); }

void TrainJob::GiveUp(const Status& why, TrainerRank because_of) {
  const std::optional<AttemptId>& attempt = member_->record().attempt;
  if (!attempt.has_value()) return;
  LogWarning("attempt_given_up", {{"attempt", ToString(*attempt)},
                                  {"because_of", because_of.value()},
                                  {"reason", Message(why)}});
  (void)member_->AskToAbandon(*attempt, Message(why), because_of);
}

void TrainJob::OnOutbox() {
  if (!member_->rank_present()) return;
  if (const Status taken = pushed_->Take(); !taken.ok()) {
    // Its outbox stays as it is, so nothing more is taken from this process.
    GiveUp(taken, identity_.rank);
    return member_->OnRankLost(process_);
  }
  if (!pushed_->TakeFinished()) return;
  const Status finished = member_->OnFinished(pushed_->state().attempt());
  if (!finished.ok()) LogInfo("finish_too_late", {{"reason", Message(finished)}});
}

Status TrainJob::Finish(const AttemptId& attempt, uint64_t pushes, double weight) {
  if (member_->record().attempt != attempt) return AbortedError("{} is over", ToString(attempt));
  DWS_RETURN_IF_ERROR(pushed_->Finish(attempt, pushes, weight));
  OnOutbox();
  return OkStatus();
}

Status TrainJob::Abandon(const AttemptId& attempt, std::string_view reason) {
  return member_->AskToAbandon(attempt, EscapeUnprintable(reason), identity_.rank);
}

Status TrainJob::Skip(uint64_t minibatch) { return member_->OnSkipped(minibatch); }

Status TrainJob::MayPublish(WeightVersion version) const {
  const MemberRecord& record = member_->record();
  if (version <= record.version) return OkStatus();  // once more
  if (record.attempt.has_value()) {
    return member_->MayPublish(record.attempt->minibatch, version);
  }
  return FailedPreconditionError("version {}: the job has not begun, rank {} holds version {}",
                                 version.value(), identity_.rank.value(), record.version.value());
}

void TrainJob::OnPublished(WeightVersion version) {
  const MemberRecord& record = member_->record();
  if (version <= record.version) return;
  DWS_KILLPOINT("sender.train.before_released");
  const Status status =
      record.attempt.has_value()
          ? member_->OnPublished(record.attempt->minibatch, version)
          : FailedPreconditionError("version {} before the job has begun", version.value());
  if (!status.ok()) LogError("published_without_step", {{"reason", Message(status)}});
}

Status TrainJob::Identity::Check(TrainerRank from, const v1::TrainMessage& message) const {
  const TrainingJob theirs{.job_id = job.job_id,  // the connection's
                           .stream = AsStands(message.stream()),
                           .world_size = message.world_size()};
  DWS_RETURN_IF_ERROR(CheckJob(job, theirs, from));
  if (FromProto(message.units()) == common) return OkStatus();
  return FailedPreconditionError(
      "rank {} has other units than rank {}: expected the same names and tensors in all ranks, and "
      "exact sums in all or in none",
      from.value(), rank.value());
}

Status TrainJob::HearUp(TrainerRank from, const v1::TrainMessage& message, TimePoint now) {
  Status status = identity_.Check(from, message);
  if (!status.ok()) {
    if (from.value() < identity_.job.world_size) refused_[from] = Message(status);
    return status;
  }
  refused_.erase(from);
  DWS_ASSIGN_OR_RETURN(const TrainBody body, BodyOf(message));
  if (const auto* report = std::get_if<TrainReport>(&body)) {
    return leader_.has_value() ? leader_->OnReport(from, *report, now) : OkStatus();
  }
  const auto* const offer = std::get_if<PieceOffer>(&body);
  const auto* const finish = std::get_if<PushFinish>(&body);
  if (offer == nullptr && finish == nullptr) {
    return InvalidArgumentError("rank {} says what only a leader or an owner says", from.value());
  }
  const std::optional<TrainerRank> owner = CombinedFor(message);
  OwnedShard* const adds = shard(owner);
  if (adds == nullptr) {
    return UnavailableError("this sender does not add up gradients of its host for owner {}",
                            owner->value());
  }
  if (finish != nullptr) return adds->OnFinish(from, *finish);
  const Accumulators& sums = owner.has_value() ? host_sums_->sums(*owner) : memory_->sums();
  Status offered = adds->OnOffer(from, *offer, message.offer(), sums);
  if (absl::IsInvalidArgument(offered)) GiveUp(offered, from);
  return offered;
}

OwnedShard* TrainJob::shard(std::optional<TrainerRank> combined_for) {
  if (!combined_for.has_value()) return shard_.get();
  return host_sums_ == nullptr ? nullptr : host_sums_->shard(*combined_for);
}

Status TrainJob::HearDown(TrainerRank from, const v1::TrainMessage& message) {
  DWS_RETURN_IF_ERROR(identity_.Check(from, message));
  DWS_ASSIGN_OR_RETURN(const TrainBody body, BodyOf(message));
  const PieceRoute route{.to = from, .owner = CombinedFor(message).value_or(from)};
  if (const auto* ack = std::get_if<PieceAck>(&body)) return pushed_->OnAck(route, *ack);
  if (const auto* wanted = std::get_if<PieceWanted>(&body)) {
    return pushed_->OnWanted(route, *wanted);
  }
  if (const auto* ack = std::get_if<FinishAck>(&body)) return pushed_->OnFinishAck(route, *ack);
  if (const auto* request = std::get_if<CombineRequest>(&body)) {
    return pushed_->OnCombineRequest(from, *request);
  }
  const auto* order = std::get_if<TrainDown>(&body);
  if (order == nullptr || from != kLeader) {
    return InvalidArgumentError("rank {} says what only the leader says", from.value());
  }
  const std::optional<AttemptId> before = member_->record().attempt;
  DWS_RETURN_IF_ERROR(member_->OnDown(*order));
  const auto* abandon = std::get_if<AbandonDecision>(&order->what);
  if (abandon != nullptr && member_->record().attempt != before) {
    abandoned_ = *abandon;
    if (before.has_value()) ++abandons_;
  }
  return OkStatus();
}

void TrainJob::OnConnect(TrainerRank rank, bool up) {
  if (rank.value() >= identity_.job.world_size) return;
  if (up) {
    pushed_->OnConnect(rank);
    if (rank == kLeader) report_at_ = {};
  } else {
    shard_->OnConnect(rank);
    if (host_sums_ != nullptr) host_sums_->OnConnect(rank);
  }
}

void TrainJob::OnPeerGone(TrainerRank rank, TimePoint now) {
  if (leader_.has_value() && rank.value() < identity_.job.world_size) {
    leader_->OnDisconnect(rank, now);
  }
}

void TrainJob::OnSealed(const AttemptId& attempt, double weight, const GradientSum& sum) {
  const Status sealed = member_->OnSealed(attempt, {.sum_squares = sum.finite ? sum.of_squares : 0,
                                                    .weight = weight,
                                                    .finite = sum.finite,
                                                    .exact = sum.exact && !shard_->rounded()});
  if (!sealed.ok()) LogInfo("seal_too_late", {{"reason", Message(sealed)}});
}

void TrainJob::Tick(TimePoint now) {
  if (leader_.has_value()) leader_->Tick(now);
  shard_->Tick();
  if (host_sums_ != nullptr) host_sums_->Tick();
  OnOutbox();  // in case the rank's byte was lost
}

bool TrainJob::Settle(TimePoint now) {
  while (member_->TakeChanged()) {
    Save();
    report_at_ = {};
    const std::optional<AttemptId>& attempt = member_->record().attempt;
    if (!attempt.has_value() || opened_ == attempt) continue;
    opened_ = attempt;
    shard_->Open(*attempt);
    if (host_sums_ != nullptr) host_sums_->Open(*attempt);
    pushed_->Open(*attempt);
  }
  shard_->Settle(member_->rank_present());
  if (host_sums_ != nullptr) host_sums_->Settle(member_->rank_present(), *pushed_, now);
  SendDue(now);
  const auto place = std::pair(member_->phase(), opened_);
  if (place != std::exchange(place_, place)) place_since_ = now;
  std::string view = View().SerializeAsString();
  return view != std::exchange(seen_, view);
}

void TrainJob::Save() {
  const MemberRecord& record = member_->record();
  if (!record.attempt.has_value() && record.version == WeightVersion(0)) return;
  v1::TrainMessage message = identity_.Address(TrainReport{.record = record});
  memory_->record().Save(message);
  AfterRecord(record, opened_);
}

void TrainJob::SendDue(TimePoint now) {
  if (now >= report_at_) {
    report_at_ = now + limits::kTrainRepeat;
    if (const auto report = member_->Report()) outputs_.up(kLeader, identity_.Address(*report));
  }
  if (leader_.has_value()) {
    for (const auto& [to, order] : leader_->Due(now)) {
      BeforeOrder(order);
      outputs_.down(to, identity_.Address(order));
    }
  }
  for (const PieceRoute& route : pushed_->state().routes()) {
    for (v1::TrainMessage& message : pushed_->Due(route, now)) {
      identity_.Address(message, route);
      BeforePush(message);
      outputs_.up(route.to, std::move(message));
    }
  }
}

void TrainJob::FillStatus(v1::OnDemandStatus& status, TimePoint now) const {
  const v1::MinibatchView view = View();
  status.set_rank_present(member_->rank_present());
  if (opened_.has_value()) {
    status.set_minibatch(opened_->minibatch);
    status.set_attempt(opened_->attempt);
  }
  status.set_phase(PhaseText(member_->phase()));
  status.set_waits_for(view.waits_for());
  status.set_phase_seconds(ToSeconds(now - place_since_));
  status.set_abandoned(abandons_);
  status.set_pieces_added(shard_->counts().added);
  status.set_pieces_repeated(shard_->counts().repeated);
  status.set_pieces_refused(shard_->counts().refused);
  status.set_pushes_waiting(pushed_->state().in_use());
  status.set_exact(view.exact());
  if (host_sums_ == nullptr) return;
  const HostSums::Counts combined = host_sums_->counts();
  status.set_host_accumulators_bytes(combined.room_bytes);
  status.set_combined_pieces(combined.pieces);
  status.set_combined_bytes(combined.bytes);
}

v1::MinibatchView TrainJob::View() const {
  v1::MinibatchView view;
  const MemberRecord& record = member_->record();
  view.set_phase(ToProto(member_->phase()));
  view.set_version(record.version.value());
  if (record.attempt.has_value()) *view.mutable_attempt() = ToProto(*record.attempt);
  if (record.step.has_value()) *view.mutable_step() = ToProto(*record.step);
  view.set_exact(record.sealed.has_value() && record.sealed->exact);
  if (abandoned_.has_value()) *view.mutable_abandoned() = ToProto(*abandoned_);
  std::string waits = member_->WaitsFor();
  if (leader_.has_value()) {
    const MinibatchLeaderState::Waiting waiting = leader_->WaitsFor();
    if (!waiting.ranks.empty()) {
      waits +=
          fmt::format("; the leader waits for ranks {}: {}", Ranks(waiting.ranks), waiting.what);
    }
    if (leader_->broken().has_value()) waits += "; " + *leader_->broken();
  }
  for (const auto& [rank, why] : refused_) waits += "; " + why;
  view.set_waits_for(std::move(waits));
  return view;
}

}  // namespace dws
