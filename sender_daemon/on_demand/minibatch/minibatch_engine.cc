// One lock for the job: what it does under it is arithmetic on small values, and messages that are
// queued. Bytes are brought and added by other threads, which tell the job when they have done so;
// what belongs to an earlier job is told by its number, and dropped.
#include "sender_daemon/on_demand/minibatch/minibatch_engine.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "common/proto_convert/convert.h"
#include "sender_daemon/on_demand/gather/owner_links.h"

namespace dws {
namespace {

void LogRefused(TrainerRank from, const Status& status) {
  if (status.ok() || absl::IsAborted(status) || absl::IsUnavailable(status)) return;
  LogWarning("train_message_refused", {{"from", from.value()}, {"reason", Message(status)}});
}

std::vector<std::optional<SenderHost>> HostsOf(const OwnerLinks& links) {
  std::vector<std::optional<SenderHost>> hosts;
  for (uint32_t r = 0; r < links.size(); ++r) {
    std::optional<SenderHost>& host = hosts.emplace_back();
    const std::optional<OwnerHost> told = links.owner(TrainerRank(r)).host();
    if (told.has_value()) host = {.id = told->id, .combines = told->accumulate_bytes > 0};
  }
  return hosts;
}

TrainJob::Identity IdentityOf(const MinibatchEngine::Options& options,
                              const MinibatchEngine::Joining& joining) {
  return {
      .job = {.job_id = options.job_id, .stream = joining.stream, .world_size = joining.world_size},
      .rank = options.rank,
      .epoch = options.epoch,
      .common = CommonDigest(joining.order),
      .peer_timeout = options.peer_timeout,
      .exact = joining.order.exact,
      .shards = joining.order.shards,
      .pushed = joining.order.pushed,
      .accumulate_bytes = options.accumulate_bytes};
}

}  // namespace

MinibatchEngine::MinibatchEngine(Options options, ThreadPool& pool, const Clock& clock)
    : options_(std::move(options)), clock_(clock), adder_(pool), ticks_([this] {
        WithJob([this](TrainJob& job) { job.Tick(clock_.Now()); });
        return limits::kTick;
      }) {}

MinibatchEngine::~MinibatchEngine() { Stop(); }

void MinibatchEngine::Connect(OwnerLinks& links, Down down) {
  links_ = &links;
  down_ = std::move(down);
  puller_ = std::make_unique<PiecePuller>(links);
  ticks_.Start();
}

void MinibatchEngine::Stop() {
  ticks_.Stop();
  if (puller_ != nullptr) puller_->Stop();
  adder_.Stop();
}

void MinibatchEngine::SetOnView(std::function<void()> on_view) {
  MutexLock lock(mutex_);
  on_view_ = std::move(on_view);
}

Status MinibatchEngine::Settled(const std::function<Status()>& change) {
  std::function<void()> tell;
  Status status;
  {
    MutexLock lock(mutex_);
    status = change();
    if (job_ != nullptr && job_->Settle(clock_.Now())) tell = on_view_;
  }
  if (tell != nullptr) tell();
  return status;
}

void MinibatchEngine::WithJob(const Change& change, uint64_t number) {
  (void)Settled([&] {
    if (job_ != nullptr && (number == 0 || number == jobs_)) change(*job_);
    return OkStatus();
  });
}

Status MinibatchEngine::NotJoined() {
  return FailedPreconditionError(
      "the rank has to join: another process has taken its place, or this sender has started "
      "again");
}

Status MinibatchEngine::CheckMember(uint64_t member) const {
  const bool joined = job_ != nullptr && member != 0 && member == member_;
  return joined ? OkStatus() : NotJoined();
}

// Runs under the lock, and so may not be called back at once.
TrainJob::Outputs MinibatchEngine::OutputsOf(uint64_t number) {
  using Sums = std::function<std::shared_ptr<Accumulators>()>;
  const auto work_of = [this, number](std::optional<TrainerRank> combined_for, const Sums& sums) {
    const auto with_shard = [this, number, combined_for](const auto& what) {
      WithJob([&](TrainJob& job) { what(*job.shard(combined_for)); }, number);
    };
    OwnedShard::Work work;
    work.pull = [this, with_shard](const PieceToPull& pull) {
      return puller_->Pull(pull, [this, with_shard, pull](const Result<PiecePuller::Bytes>& bytes) {
        if (bytes.ok()) {
          MutexLock lock(mutex_);
          (bytes->mapped ? mapped_bytes_ : fetched_bytes_) += bytes->piece.bytes.size();
        }
        const auto lent = bytes.ok() ? Result<LentPiece>(bytes->piece) : bytes.status();
        with_shard([&](OwnedShard& shard) { shard.OnPulled(pull, lent); });
      });
    };
    work.add = [this, with_shard, sums](TrainerRank from, const PiecePull& piece, UnitIndex unit,
                                        LentPiece bytes) {
      adder_.Add(sums(), unit, std::move(bytes), [with_shard, from, piece](const Status& added) {
        DWS_CHECK(added.ok());  // the piece was checked when it was offered
        with_shard([&](OwnedShard& shard) { shard.OnAdded(from, piece); });
      });
    };
    work.seal = [this, number, sums](const AttemptId& attempt, double weight) {
      adder_.Seal(sums(), [this, number, attempt, weight](const Result<GradientSum>& sum) {
        if (!sum.ok()) return LogWarning("not_sealed", {{"reason", Message(sum.status())}});
        WithJob([&](TrainJob& job) { job.OnSealed(attempt, weight, *sum); }, number);
      });
    };
    work.let_go = [this, sums] { adder_.LetGo(sums()); };
    return work;
  };
  const Sums of_rank = [this] {
    const std::shared_ptr<RankMemory>& memory = job_->memory();
    return std::shared_ptr<Accumulators>(memory, &memory->sums());
  };
  return {.up = [this](TrainerRank to,
                       v1::TrainMessage message) { links_->owner(to).Send(std::move(message)); },
          .down = down_,
          .work = work_of(std::nullopt, of_rank),
          .combined_work =
              [work_of](TrainerRank owner, const std::shared_ptr<Accumulators>& sums) {
                return work_of(owner, [sums] { return sums; });
              },
          .hosts = [this] { return HostsOf(*links_); }};
}

Status MinibatchEngine::CheckJoins(const Joining& joining) const {
  if (joining.world_size != options_.ranks) {
    return FailedPreconditionError(
        "the trainer has {} ranks, and --train-peers names {} senders: expected one each",
        joining.world_size, options_.ranks);
  }
  if (joining.member <= last_member_) {
    return FailedPreconditionError("another process of rank {} has joined meanwhile",
                                   options_.rank.value());
  }
  const JoinOrder& order = joining.order;
  for (size_t u = 0; u < order.pushed.size(); ++u) {
    const size_t owners = order.pushed[u].size();
    if (owners == 0 || owners == joining.world_size) continue;
    return InvalidArgumentError("unit '{}' is pushed to {} owners, and the job has {} ranks",
                                order.shards[u].name, owners, joining.world_size);
  }
  if (job_ == nullptr || job_->identity().job.stream != joining.stream) return OkStatus();
  const TrainJob::Identity& known = job_->identity();
  if (known.common == CommonDigest(order) && known.shards == order.shards) return OkStatus();
  return FailedPreconditionError(
      "rank {} joins again with other units, or another kind of sums, than before in this "
      "incarnation",
      options_.rank.value());
}

Status MinibatchEngine::Join(Joining joining) {
  const Status joined = Settled([&]() -> Status {
    DWS_RETURN_IF_ERROR(CheckJoins(joining));
    const bool begins = job_ == nullptr || job_->identity().job.stream != joining.stream;
    if (begins) {
      ++jobs_;
      job_ =
          std::make_unique<TrainJob>(IdentityOf(options_, joining), OutputsOf(jobs_), clock_.Now());
    }
    Status taken =
        job_->Join(joining.version, std::move(joining.process), std::move(joining.memory));
    if (!taken.ok() && begins) job_.reset();
    if (taken.ok()) member_ = last_member_ = joining.member;
    return taken;
  });
  DWS_RETURN_IF_ERROR(joined);
  LogInfo("rank_joined", {{"version", joining.version.value()}, {"member", joining.member}});
  return OkStatus();
}

void MinibatchEngine::Leave(uint64_t member) {
  (void)ForMember(member, [this](TrainJob& job) {
    job.Leave();
    member_ = 0;  // under the lock
    return OkStatus();
  });
}

Status MinibatchEngine::ForMember(uint64_t member, const std::function<Status(TrainJob&)>& what) {
  return Settled([&]() -> Status {
    DWS_RETURN_IF_ERROR(CheckMember(member));
    return what(*job_);
  });
}

Result<v1::MinibatchView> MinibatchEngine::View(uint64_t member) const {
  MutexLock lock(mutex_);
  DWS_RETURN_IF_ERROR(CheckMember(member));
  return job_->View();
}

void MinibatchEngine::FillStatus(v1::OnDemandStatus& status) const {
  status.set_ranks(options_.ranks);
  MutexLock lock(mutex_);
  status.set_pulled_mapped_bytes(mapped_bytes_);
  status.set_pulled_fetched_bytes(fetched_bytes_);
  if (job_ != nullptr) job_->FillStatus(status, clock_.Now());
}

Status MinibatchEngine::MayPublish(const StreamId& stream, WeightVersion version) const {
  MutexLock lock(mutex_);
  if (job_ == nullptr || job_->identity().job.stream != stream) return OkStatus();
  return job_->MayPublish(version);
}

void MinibatchEngine::OnPublished(const StreamId& stream, WeightVersion version) {
  WithJob([&](TrainJob& job) {
    if (job.identity().job.stream == stream) job.OnPublished(version);
  });
}

Result<LentPiece> MinibatchEngine::Lend(const v1::FetchPieceRequest& request) const {
  MutexLock lock(mutex_);
  if (job_ == nullptr || job_->identity().job.stream != AsStands(request.stream())) {
    return AbortedError("rank {} is in another incarnation of the job, or in none",
                        options_.rank.value());
  }
  const TrainerRank from(request.trainer_rank());
  const TrainerRank owner = request.has_combined_for() ? TrainerRank(request.combined_for()) : from;
  return job_->pushed().Lend(
      {.to = from, .owner = owner},
      {.attempt = FromProto(request.attempt()), .number = PieceNumber(request.number())});
}

Result<std::shared_ptr<RankMemory>> MinibatchEngine::Outbox(
    const v1::OpenOutboxRequest& request) const {
  MutexLock lock(mutex_);
  if (job_ != nullptr && job_->identity().job.stream == AsStands(request.stream()) &&
      job_->memory()->outbox_id() == request.outbox()) {
    return job_->memory();
  }
  return AbortedError("rank {} has another outbox, or none", options_.rank.value());
}

void MinibatchEngine::OnOwner(TrainerRank rank) {
  WithJob([&](TrainJob& job) { job.OnConnect(rank, /*up=*/true); });
}

void MinibatchEngine::OnDown(TrainerRank from, const v1::TrainMessage& message) {
  WithJob([&](TrainJob& job) { LogRefused(from, job.HearDown(from, message)); });
}

void MinibatchEngine::OnPeer(TrainerRank rank) {
  WithJob([&](TrainJob& job) { job.OnConnect(rank, /*up=*/false); });
}

void MinibatchEngine::OnUp(TrainerRank from, const v1::TrainMessage& message) {
  WithJob([&](TrainJob& job) { LogRefused(from, job.HearUp(from, message, clock_.Now())); });
}

void MinibatchEngine::OnPeerGone(TrainerRank rank) {
  WithJob([&](TrainJob& job) { job.OnPeerGone(rank, clock_.Now()); });
}

}  // namespace dws
