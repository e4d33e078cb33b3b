// Goes by the decisions of common/sync_state as dws-receiver does: newest target, delta from what
// it has, description if there is no such delta.
#include "tools/bench/receivers/light_receiver.h"

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/delta/objects/frame.h"
#include "common/model/limits.h"
#include "common/spool/fetched_object.h"

namespace dws::bench {
namespace {

constexpr size_t kCommitsKept = 256;
constexpr std::chrono::seconds kLook{5};           // without a change
constexpr std::chrono::milliseconds kRetry{200};   // after a failure
constexpr uint64_t kObjectBytesMax = 64ULL << 20;  // that a light receiver takes

// Every frame is there, whole, and has an index that fits its blocks.
Status CheckFrames(const FetchedObject& object, const Spool& spool) {
  std::vector<std::byte> buffer;
  for (const SpooledFrame& frame : object.frames) {
    DWS_ASSIGN_OR_RETURN(const ByteSpan bytes,
                         spool.Read(frame.spool_offset, frame.entry.size_bytes, buffer));
    DWS_RETURN_IF_ERROR(ParseFrame(bytes, frame.entry).status());
  }
  return OkStatus();
}

}  // namespace

LightReceiver::LightReceiver(const Options& options, const Clock& clock)
    : clock_(clock),
      subscription_({options.sender}, std::nullopt, changed_, clock),
      links_({.addresses = {options.sender},
              .job_id = options.job_id,
              .receiver_id = options.receiver_id,
              .early_deltas = false},
             subscription_, clock),
      inline_(links_),
      grpc_(links_, options.profile, clock) {}

void LightReceiver::Start() {
  DWS_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void LightReceiver::BeginStop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  links_.CancelFetches();
  changed_.Notify();
}

void LightReceiver::Stop() {
  BeginStop();
  if (thread_.joinable()) thread_.join();
  links_.Stop();
}

LightReceiver::View LightReceiver::view() const {
  MutexLock lock(mutex_);
  return view_;
}

void LightReceiver::Run() {
  uint64_t seen = 0;
  Duration wait = Duration::zero();
  while (true) {
    seen = changed_.WaitBeyond(seen, wait);
    {
      MutexLock lock(mutex_);
      if (stopping_) return;
    }
    const Status status = Step();
    wait = status.ok() ? Duration(kLook) : Duration(kRetry);
    if (status.ok()) continue;
    MutexLock lock(mutex_);
    ++view_.failures;
    view_.trouble = std::string(Message(status));
  }
}

Status LightReceiver::Step() {
  const std::optional<SyncTarget> target = subscription_.Target();
  if (!target.has_value() || (live_.has_value() && live_->at == target->at())) return OkStatus();
  const Status status = Reach(*target);
  const bool refused = absl::IsDataLoss(status) || absl::IsFailedPrecondition(status);
  for (uint32_t r = 0; refused && r < target->ranks.size(); ++r) {
    links_.Rejected(
        *target, TrainerRank(r),
        {.last_good = live_.has_value() ? VersionIn(live_->at, target->stream) : std::nullopt,
         .reason = status,
         .slices = {}});
  }
  return status;
}

Status LightReceiver::Reach(const SyncTarget& target) {
  const TimePoint begun = clock_.Now();
  Live next{.at = target.at(), .ranks = {}, .layout_signatures = {}};
  std::vector<uint64_t> fetched(target.ranks.size());
  std::vector<Digest> tokens;
  for (uint32_t r = 0; r < target.ranks.size(); ++r) {
    const Piece piece{.target = target, .rank = TrainerRank(r)};
    DWS_ASSIGN_OR_RETURN(PublishedState state, Prepare(piece, fetched[r]));
    tokens.push_back(state.state_token);
    next.ranks.push_back(std::move(state));
    next.layout_signatures.push_back(piece.of().layout->signature());
    links_.Staged(target, piece.rank);
  }
  live_ = std::move(next);
  subscription_.SetLive(live_->at, tokens);
  const TimePoint now = clock_.Now();
  for (uint32_t r = 0; r < target.ranks.size(); ++r) {
    links_.Committed(target, TrainerRank(r),
                     {.state_token = tokens[r],
                      .pause_seconds = 0,
                      .stage_seconds = ToSeconds(now - begun),
                      .fetched_bytes = fetched[r]});
  }
  MutexLock lock(mutex_);
  view_.committed = target.version;
  for (const uint64_t bytes : fetched) view_.fetched_bytes += bytes;
  view_.commits.emplace_back(target.version, now);
  if (view_.commits.size() > kCommitsKept) view_.commits.pop_front();
  return OkStatus();
}

const PublishedState* LightReceiver::StateOf(const Piece& piece) const {
  const uint32_t rank = piece.rank.value();
  if (!live_.has_value() || rank >= live_->ranks.size()) return nullptr;
  const bool same = live_->layout_signatures[rank] == piece.of().layout->signature();
  return same ? &live_->ranks[rank] : nullptr;
}

Result<PublishedState> LightReceiver::Prepare(const Piece& piece, uint64_t& fetched_bytes) {
  const auto base =
      DeltaBase(Way::kDelta, StateOf(piece) == nullptr ? std::nullopt : std::optional(live_->at),
                piece.target.at());
  Result<PublishedState> state = AbortedError("no base");
  if (base.has_value()) state = ByDelta(piece, *base, fetched_bytes);
  const bool by_delta = state.ok();
  if (!by_delta && base.has_value() && !FallsBackToFull(state.status())) return state.status();
  if (!by_delta) {
    DWS_ASSIGN_OR_RETURN(state, ByDescription(piece));
  }
  const std::optional<Digest>& announced = piece.of().state_token;
  if (announced.has_value() && *announced != state->state_token) {
    return DataLossError("version {} leads to state {}, its announcement says {}",
                         piece.target.version.value(), ToString(state->state_token),
                         ToString(*announced));
  }
  MutexLock lock(mutex_);
  ++(by_delta ? view_.deltas : view_.described);
  return state;
}

Result<PublishedState> LightReceiver::ByDelta(const Piece& piece, WeightVersion base,
                                              uint64_t& fetched_bytes) {
  const SliceSelection all;
  const DeltaWant want{.base = base, .slices = all};
  const Spool::Options options{
      .folder = "/tmp", .memory_bytes_max = kObjectBytesMax, .size_bytes_max = kObjectBytesMax};
  DWS_ASSIGN_OR_RETURN(DeltaRead read, inline_.ReadDelta(piece, want, options));
  if (!read.object.has_value()) {
    DWS_ASSIGN_OR_RETURN(read, grpc_.ReadDelta(piece, want, options));
  }
  DWS_CHECK(read.object.has_value());
  const Spool& spool = *read.object;
  fetched_bytes += spool.size_bytes();
  DWS_ASSIGN_OR_RETURN(const FetchedObject object, ParseObject(spool, *piece.of().layout));
  DWS_RETURN_IF_ERROR(CheckManifest(object.manifest, piece.target.at(), piece.rank, base));
  DWS_RETURN_IF_ERROR(CheckFrames(object, spool));
  const PublishedState& before = *StateOf(piece);
  for (const SliceDelta& slice : object.manifest.slices) {
    if (slice.before == before.slices[slice.slice.value()]) continue;
    return DataLossError("the delta {} -> {} begins at another state of slice {}", base.value(),
                         piece.target.version.value(), slice.slice.value());
  }
  return Follow(before.slices, object.manifest);
}

Result<PublishedState> LightReceiver::ByDescription(const Piece& piece) {
  DWS_ASSIGN_OR_RETURN(PublishedState state, links_.Describe(piece.target, piece.rank));
  const uint32_t slices = piece.of().layout->slice_count();
  if (state.slices.size() != slices || StateToken(state.slices) != state.state_token) {
    return DataLossError("the description of version {} has {} slices of {}, or another state",
                         piece.target.version.value(), state.slices.size(), slices);
  }
  return state;
}

}  // namespace dws::bench
