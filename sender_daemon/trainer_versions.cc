// The second half of TrainerSession: the versions of a live registration.
#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "common/base/failpoint.h"
#include "common/model/limits.h"
#include "common/service/sockets/unix_socket.h"
#include "sender_daemon/trainer_session.h"

namespace dws {
namespace {

// True while it lives.
class Mark {
 public:
  explicit Mark(std::atomic<bool>& flag) : flag_(flag) { flag_.store(true); }
  ~Mark() { flag_.store(false); }
  Mark(const Mark&) = delete;
  Mark& operator=(const Mark&) = delete;

 private:
  std::atomic<bool>& flag_;
};

Status AttemptGivenUp(uint64_t version) {
  return CancelledError("publishing version {} was given up by the trainer: nothing of it is kept",
                        version);
}

}  // namespace

Result<TrainerSession::Live*> TrainerSession::Find(uint64_t session) {
  if (live_.has_value() && live_->session == session) return &*live_;
  return FailedPreconditionError("session {} is not registered (any more): {}", session,
                                 live_.has_value() ? "another trainer took its place"
                                                   : "register first, or again after a restart");
}

bool TrainerSession::GivenUp(const Live& live, uint64_t attempt) {
  return (attempt != 0 && attempt <= live.attempts_given_up) || PeerHasShut(live.connection);
}

std::optional<WeightVersion> TrainerSession::LastVersion() const {
  std::optional<WeightVersion> last =
      parts_.ledger->state().last_version();  // of the current stream
  if (state_ != nullptr && state_->snapshot->version().has_value()) {
    last = std::max(last.value_or(WeightVersion(0)), *state_->snapshot->version());
  }
  return last;
}

Status TrainerSession::AdmitVersion(WeightVersion version) const {
  DWS_RETURN_IF_ERROR(parts_.drain->Admit(fmt::format("version {}", version.value())));
  const uint64_t last = LastVersion().value_or(WeightVersion(0)).value();
  if (version.value() > last) return OkStatus();
  return FailedPreconditionError(
      "version {} does not increase: the newest of stream {} is {}; publish {} "
      "or higher, or start a new stream",
      version.value(), ToString(state_->stream), last, last + 1);
}

DeltaProfile TrainerSession::NextProfile() const {
  const std::optional<DeltaProfile> decided = Decided(options_.profile);
  return decided.has_value() ? *decided : state_->log->Asked();
}

Status TrainerSession::Begin(const v1::BeginRequest& request) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  if (!live->registration.ring.has_value()) {
    return InvalidArgumentError(
        "this registration hands over a resident region: publish it, nothing has to be begun");
  }
  if (live->open_version != nullptr) {
    return FailedPreconditionError("version {} is open: publish or abort it before beginning {}",
                                   live->open_version->version().value(), request.version());
  }
  if (GivenUp(*live, request.attempt())) return AttemptGivenUp(request.version());
  DWS_RETURN_IF_ERROR(AdmitVersion(WeightVersion(request.version())));
  live->open_attempt = request.attempt();
  live->capture_time = {};
  live->open_version = std::make_unique<Capture>(*state_->snapshot, *parts_.pool,
                                                 WeightVersion(request.version()), NextProfile());
  return OkStatus();
}

Status TrainerSession::Put(const v1::PutRequest& request, const StillWanted& still_wanted) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  if (live->open_version == nullptr || live->open_version->version().value() != request.version()) {
    return FailedPreconditionError("version {} is not open: begin it first", request.version());
  }
  // Of an earlier attempt: its bucket holds something else by now.
  if (request.attempt() != live->open_attempt) return AttemptGivenUp(request.version());
  const Registration::Ring& ring = *live->registration.ring;
  if (request.bucket() >= ring.bucket_count) {
    return InvalidArgumentError("bucket {} does not exist, the ring has {}", request.bucket(),
                                ring.bucket_count);
  }
  if (static_cast<size_t>(request.pieces_size()) > limits::kPutPiecesMax) {
    return InvalidArgumentError("{} pieces in one Put, at most {} are supported",
                                request.pieces_size(), limits::kPutPiecesMax);
  }
  std::vector<BucketPiece> pieces;
  for (const v1::PutPiece& piece : request.pieces()) {
    pieces.push_back({.slice = RankSlice(piece.rank_slice()),
                      .first_block = piece.first_block(),
                      .block_count = piece.block_count(),
                      .offset_bytes = piece.offset_bytes()});
  }
  const ByteSpan bucket =
      live->ring.bytes().subspan(uint64_t{request.bucket()} * ring.bucket_bytes, ring.bucket_bytes);
  DWS_ASSIGN_OR_RETURN(BucketSource source,
                       BucketSource::Create(state_->layout(), bucket, std::move(pieces)));
  const TimePoint began = parts_.clock->Now();
  DWS_RETURN_IF_ERROR(live->open_version->Blocks(source.Blocks(), source));
  live->capture_time += parts_.clock->Now() - began;
  if (still_wanted() && !GivenUp(*live, request.attempt())) return OkStatus();
  live->open_version.reset();
  return CancelledError(
      "a put into version {} was given up by the trainer: nothing of the version is kept",
      request.version());
}

Status TrainerSession::Abort(const v1::AbortRequest& request) {
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  live->attempts_given_up = std::max(live->attempts_given_up, request.attempt());
  if (live->open_version == nullptr || live->open_version->version().value() != request.version()) {
    return FailedPreconditionError("version {} is not open: there is nothing to abort",
                                   request.version());
  }
  live->open_version.reset();
  return OkStatus();
}

Result<v1::PublishReply> TrainerSession::Publish(const v1::PublishRequest& request,
                                                 const StillWanted& still_wanted) {
  const TimePoint accepted_at = parts_.clock->Now();
  // Before the drain switch is read: whoever turns it sees this version coming, or refuses it.
  const Mark publishing(publishing_);
  const WeightVersion version(request.version());
  DWS_ASSIGN_OR_RETURN(Live * live, Find(request.session()));
  DWS_RETURN_IF_ERROR(AdmitVersion(version));
  const bool ring = live->registration.ring.has_value();
  if (ring && (live->open_version == nullptr || live->open_version->version() != version)) {
    return FailedPreconditionError("version {} is not open: begin it and put its tensors first",
                                   version.value());
  }
  if (ring && request.attempt() != live->open_attempt) return AttemptGivenUp(version.value());
  DWS_RETURN_IF_ERROR(parts_.pipeline->Reserve(limits::kRpcDeadline));
  const TimePoint began = parts_.clock->Now();
  const auto wanted = [&] { return still_wanted() && !GivenUp(*live, request.attempt()); };
  if (!ring && wanted()) {
    live->capture_time = {};
    live->open_version =
        std::make_unique<Capture>(*state_->snapshot, *parts_.pool, version, NextProfile());
    // Every block once: they are not refused, but a GPU may fail.
    if (Status captured = live->open_version->Blocks(AllBlocks(state_->layout()), *live->resident);
        !captured.ok()) {
      live->open_version.reset();
      return Annotate(captured, fmt::format("version {}", version.value()));
    }
  }
  // After the last read of the weights: what was whole then is published.
  if (!wanted()) {
    live->open_version.reset();
    return AttemptGivenUp(version.value());
  }
  DWS_ASSIGN_OR_RETURN(CapturedVersion captured, live->open_version->Finish());
  live->open_version.reset();
  v1::PublishReply reply;
  reply.set_changed_elements(captured.nnz);
  reply.set_total_elements(state_->layout().element_count());
  DWS_KILLPOINT("sender.publish.after_capture");
  reply.set_capture_seconds(ToSeconds(parts_.clock->Now() - accepted_at));
  parts_.pipeline->Submit(
      {.state = state_,
       .captured = std::move(captured),
       .capture_seconds = ToSeconds(live->capture_time + (parts_.clock->Now() - began)),
       .accepted_at = accepted_at});
  return reply;
}

Status TrainerSession::CheckWait(const v1::WaitRequest& request) {
  DWS_ASSIGN_OR_RETURN(const Live* live, Find(request.session()));
  (void)live;
  const std::optional<WeightVersion> captured = state_->snapshot->version();
  if (captured.has_value() && captured->value() >= request.version()) return OkStatus();
  return AbortedError(
      "version {} was not published to this sender (newest {}): it was lost with a restart, "
      "or never published",
      request.version(), captured.has_value() ? captured->value() : 0);
}

}  // namespace dws
