// A request that cannot be answered because of this rank's disk is tried again; one that cannot be
// answered because of what this rank has is refused, so that rank 0 asks for something else.
#include "sender_daemon/slime/parts_member.h"

#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/formats/slime_delta/version_parts.h"
#include "common/formats/slime_delta/version_writer.h"
#include "sender_daemon/slime/slime_folder.h"

namespace dws {

PartsMember::PartsMember(FileSystem& files, Options options)
    : files_(files), options_(std::move(options)) {}

Status PartsMember::Adopt(const RankStatePtr& state) {
  writer_.reset();
  answered_.clear();
  last_ = {};
  published_ = 0;
  news_ = Published{};
  waiting_since_.reset();
  DWS_ASSIGN_OR_RETURN(SlimeWriter writer,
                       SlimeWriter::Create(files_, options_.writer, state, options_.wanted));
  DWS_RETURN_IF_ERROR(CheckViewTypes(*options_.base, state->layout()));
  writer_ = std::make_unique<SlimeWriter>(std::move(writer));
  return OkStatus();
}

Result<std::optional<PartRequest>> PartsMember::ReadRequest() const {
  const std::string path = options_.writer.root + "/" + kPartRequestFile;
  const auto text = files_.ReadFile(path, kPartRequestBytesMax);
  if (absl::IsNotFound(text.status())) return std::optional<PartRequest>();
  DWS_RETURN_IF_ERROR(text.status());
  DWS_ASSIGN_OR_RETURN(PartRequest request, ParsePartRequest(AsText(*text), path));
  if (request.stream != SlimeStreamName(*writer_->state())) return std::optional<PartRequest>();
  return std::optional(std::move(request));
}

Status PartsMember::CheckRequest(const PartRequest& request) const {
  if (request.world_size != writer_->state()->world_size) {
    return FailedPreconditionError(
        "{}: rank 0 asks for parts of {} ranks, and this is rank {} of {}", options_.writer.root,
        request.world_size, writer_->state()->trainer_rank.value(), writer_->state()->world_size);
  }
  const bool same =
      request.encoding == options_.writer.encoding && request.checksum == options_.writer.checksum;
  if (same) return OkStatus();
  return FailedPreconditionError(
      "{}: rank 0 asks for parts as {} with {}, and this sender is to write {} with {}: start all "
      "ranks with the same --slime-encoding and --slime-checksum",
      options_.writer.root, NameOf(request.encoding), NameOf(request.checksum),
      NameOf(options_.writer.encoding), NameOf(options_.writer.checksum));
}

void PartsMember::NotePublished(uint64_t version) {
  if (version <= published_) return;
  published_ = version;
  const bool ours = last_.version == WeightVersion(version) && last_.ours;
  news_ = ours ? last_ : Published{.version = WeightVersion(version)};
}

std::optional<PartsMember::Published> PartsMember::TakePublished() {
  return std::exchange(news_, std::nullopt);
}

Result<bool> PartsMember::Step(const RankStatePtr& offered) {
  if (writer_ == nullptr || writer_->state() != offered) DWS_RETURN_IF_ERROR(Adopt(offered));
  const RetainedVersionPtr newest = offered->log->Newest();
  if (newest == nullptr) return false;
  DWS_ASSIGN_OR_RETURN(const std::optional<PartRequest> request, ReadRequest());
  if (request.has_value()) {
    DWS_RETURN_IF_ERROR(CheckRequest(*request));
    NotePublished(request->published);
    if (request->published >= newest->version.value()) {
      waiting_since_.reset();
      return false;
    }
    const bool asked =
        request->kind != PartKind::kNone && request->version <= newest->version.value();
    const std::string part =
        PartWriterName(*request, offered->trainer_rank.value(), offered->rank_epoch.value());
    if (asked && part != answered_) {
      const Status answer = Answer(*request);
      if (answer.ok()) {
        answered_ = part;
        waiting_since_.reset();
        return true;
      }
      // Rank 0 removes the parts of an attempt that it has given up, also one that is written.
      DWS_ASSIGN_OR_RETURN(const std::optional<PartRequest> now, ReadRequest());
      if (now != request) return true;
      return answer;
    }
  }
  return Wait(newest->version, request);
}

Result<bool> PartsMember::Wait(WeightVersion newest, const std::optional<PartRequest>& request) {
  const TimePoint now = std::chrono::steady_clock::now();
  if (!waiting_since_.has_value()) waiting_since_ = now;
  if (now - *waiting_since_ < options_.wait_max) return false;
  if (!request.has_value()) {
    return UnavailableError(
        "{}: version {} is not there, and rank 0's sender has not asked for parts of stream {}: is "
        "it started with the same --slime-dir and --slime-view, on the same shared file system?",
        options_.writer.root, newest.value(), SlimeStreamName(*writer_->state()));
  }
  return UnavailableError(
      "{}: version {} is not there, rank 0's sender has published version {} and has asked for "
      "parts of version {}: its `dwsctl status` says what it waits for",
      options_.writer.root, newest.value(), request->published, request->version);
}

Status PartsMember::Answer(const PartRequest& request) {
  const RankStatePtr state = writer_->state();
  const std::string part =
      PartWriterName(request, state->trainer_rank.value(), state->rank_epoch.value());
  // A part that is complete is not written again: rank 0 may be joining it.
  const std::string folder =
      options_.writer.root + "/" + slime::UnfinishedFolderName(request.version, part);
  const Status complete = slime::ReadPart(files_, folder, request.version).status();
  if (complete.ok()) return OkStatus();
  if (!absl::IsUnavailable(complete)) return complete;
  const Result<uint64_t> bytes = Write(request, part);
  const bool damaged = absl::IsDataLoss(bytes.status()) && writer_->damaged();
  if (damaged && options_.on_damage) options_.on_damage(state);
  if (absl::IsAborted(bytes.status()) || damaged) return Refuse(request, part, bytes.status());
  DWS_RETURN_IF_ERROR(bytes.status());
  last_ = {.version = WeightVersion(request.version),
           .full = request.kind == PartKind::kFull,
           .bytes = *bytes,
           .ours = true};
  LogDebug("slime_part_written", {{"version", request.version}, {"attempt", request.attempt}});
  return OkStatus();
}

Result<uint64_t> PartsMember::Write(const PartRequest& request, const std::string& part) {
  const RankStatePtr state = writer_->state();
  const RetainedVersionPtr version = state->log->Find(WeightVersion(request.version));
  if (version == nullptr) {
    return AbortedError("it no longer has that version, its newest is {}",
                        state->log->Newest()->version.value());
  }
  const SlimeWriter::Publication as_part{.part = part};
  if (request.kind == PartKind::kFull) return writer_->WriteFull(version, as_part);
  if (request.kind == PartKind::kDelta) {
    if (version->base.has_value() && version->base->value() + 1 == request.version) {
      return writer_->WriteDelta(version, as_part);
    }
    return AbortedError("it has that version as no delta of version {}", request.version - 1);
  }
  const auto base = OpenBaseWeights(options_.checkpoint, state->layout());
  if (!base.ok()) return AbortedError("{}", Message(base.status()));
  return writer_->WriteFromBase(version, *base, as_part);
}

Status PartsMember::Refuse(const PartRequest& request, const std::string& part, const Status& why) {
  LogWarning("slime_part_refused", {{"version", request.version}, {"reason", Message(why)}});
  DWS_ASSIGN_OR_RETURN(
      const std::string folder,
      slime::BeginVersionFolder(files_, options_.writer.root, request.version, part));
  const std::string text(Message(why).substr(0, kPartRefusalBytesMax));
  return files_.ReplaceFile(folder + "/" + kPartRefusedFile, AsBytes(text));
}

}  // namespace dws
