#include "common/ledger/ledger_state.h"

#include <algorithm>
#include <iterator>
#include <string_view>
#include <utility>

#include "common/base/check.h"
#include "common/model/identity_limits.h"
#include "common/model/limits.h"

namespace dws {
namespace {

Status CheckCurrent(const std::optional<StreamId>& current, const StreamId& stream,
                    std::string_view what) {
  if (current.has_value() && *current == stream) return OkStatus();
  return FailedPreconditionError("{}: expected stream {}, found {}", what,
                                 current.has_value() ? ToString(*current) : "none",
                                 ToString(stream));
}

}  // namespace

Status CheckStream(const std::optional<StreamId>& current, const StreamId& stream) {
  if (!current.has_value() || *current == stream || stream.incarnation > current->incarnation) {
    return OkStatus();
  }
  if (stream.incarnation < current->incarnation) {
    return FailedPreconditionError(
        "stream {} is refused: incarnation {} was seen already (stream {}); an old trainer is "
        "still running, or a new one needs a higher incarnation. If the recorded one was wrong, or "
        "a clock went back: `dwsctl forget-stream` resets it",
        ToString(stream), current->incarnation, ToString(*current));
  }
  return FailedPreconditionError(
      "stream {} is refused: stream {} has the same incarnation; two trainers claim it, restart "
      "one "
      "with a higher incarnation",
      ToString(stream), ToString(*current));
}

Status CheckForgotten(const std::optional<StreamId>& recorded, const StreamId& stream) {
  if (!recorded.has_value()) {
    return FailedPreconditionError("no stream is recorded here: there is none to forget");
  }
  if (*recorded == stream) return OkStatus();
  if (stream.incarnation == 0) {
    return FailedPreconditionError(
        "stream {0} is recorded here: `dwsctl forget-stream --stream={0}` makes this daemon forget "
        "it",
        ToString(*recorded));
  }
  return FailedPreconditionError("stream {} is recorded here, not {}: name the recorded one",
                                 ToString(*recorded), ToString(stream));
}

Status SenderLedgerState::CheckOpen(const StreamId& stream) const {
  DWS_RETURN_IF_ERROR(CheckStream(stream_, stream));
  const bool forgotten = std::any_of(forgotten_.begin(), forgotten_.end(),
                                     [&](const Fence& known) { return known.stream == stream; });
  if (!forgotten && !(numbers_lost_ && stream_ == stream)) return OkStatus();
  return FailedPreconditionError(
      "stream {} is refused: {}, so it is not known here which of its version numbers are used up. "
      "Start a new stream in all trainer ranks: rank 0 makes it (dws.Stream.new()) and passes it "
      "to the others",
      ToString(stream),
      forgotten ? "an operator made this daemon forget it" : "this sender's ledger was lost");
}

RankEpoch SenderLedgerState::NextEpoch(const StreamId& stream) const {
  uint64_t highest = stream_ == stream ? rank_epoch_.value() : 0;
  for (const Fence& known : forgotten_) highest = std::max(highest, known.rank_epoch.value());
  return RankEpoch(highest + 1);
}

Status SenderLedgerState::Apply(const SenderRecord& record) {
  return std::visit([this](const auto& one) { return ApplyOne(one); }, record);
}

Status SenderLedgerState::ApplyOne(const StreamOpened& record) {
  DWS_RETURN_IF_ERROR(CheckOpen(record.stream));
  const bool same = stream_ == record.stream;
  if (same && record.rank_epoch <= rank_epoch_) {
    return FailedPreconditionError("stream {}: expected a rank epoch above {}, found {}",
                                   ToString(record.stream), rank_epoch_.value(),
                                   record.rank_epoch.value());
  }
  stream_ = record.stream;
  rank_epoch_ = record.rank_epoch;
  // nullopt compares below every version.
  last_version_ = same ? std::max(last_version_, record.last_version) : record.last_version;
  numbers_lost_ = false;
  // The last version may be published once more: its weights stay known.
  const bool known = same && !published_.empty() && published_.back().version == last_version_;
  published_.erase(published_.begin(), known ? std::prev(published_.end()) : published_.end());
  return OkStatus();
}

Status SenderLedgerState::ApplyOne(const VersionPublished& record) {
  DWS_RETURN_IF_ERROR(CheckCurrent(stream_, record.stream, "a published version"));
  DWS_RETURN_IF_ERROR(CheckOpen(record.stream));
  if (last_version_.has_value() && record.version <= *last_version_) {
    return FailedPreconditionError("expected a version above {}, found {}: versions only increase",
                                   last_version_->value(), record.version.value());
  }
  if (record.base.has_value() && *record.base >= record.version) {
    return FailedPreconditionError("version {} has the base {}, which is not below it",
                                   record.version.value(), record.base->value());
  }
  DWS_CHECK(published_.empty() || published_.back().version < record.version);
  last_version_ = record.version;
  published_.push_back(
      {.version = record.version, .base = record.base, .state_token = record.state_token});
  if (published_.size() > limits::kRetainedVersionsMax) published_.pop_front();
  DWS_CHECK(published_.size() <= limits::kRetainedVersionsMax);
  return OkStatus();
}

Status SenderLedgerState::ApplyOne(const StreamForgotten& record) {
  DWS_RETURN_IF_ERROR(CheckForgotten(stream_, record.stream));
  std::deque<Fence> forgotten = std::move(forgotten_);
  forgotten.push_back({.stream = record.stream, .rank_epoch = rank_epoch_});
  if (forgotten.size() > limits::kForgottenStreamsMax) forgotten.pop_front();
  DWS_CHECK(forgotten.size() <= limits::kForgottenStreamsMax);
  *this = SenderLedgerState();
  forgotten_ = std::move(forgotten);
  return OkStatus();
}

Status SenderLedgerState::ApplyOne(const NumbersLost& record) {
  DWS_RETURN_IF_ERROR(CheckCurrent(stream_, record.stream, "lost version numbers"));
  numbers_lost_ = true;
  last_version_.reset();
  published_.clear();
  return OkStatus();
}

std::optional<Fence> SenderLedgerState::fence() const {
  if (!stream_.has_value()) return std::nullopt;
  return Fence{.stream = *stream_, .rank_epoch = rank_epoch_};
}

std::vector<SenderRecord> SenderLedgerState::Records() const {
  std::vector<SenderRecord> records;
  for (const Fence& known : forgotten_) {
    records.push_back(StreamOpened{.stream = known.stream, .rank_epoch = known.rank_epoch});
    records.push_back(StreamForgotten{.stream = known.stream});
  }
  if (!stream_.has_value()) return records;
  DWS_CHECK(published_.empty() || published_.back().version == last_version_);
  records.push_back(
      StreamOpened{.stream = *stream_,
                   .rank_epoch = rank_epoch_,
                   .last_version = published_.empty() ? last_version_ : std::nullopt});
  if (numbers_lost_) records.push_back(NumbersLost{.stream = *stream_});
  for (const Published& published : published_) {
    records.push_back(VersionPublished{.stream = *stream_,
                                       .version = published.version,
                                       .base = published.base,
                                       .state_token = published.state_token});
  }
  return records;
}

Status ReceiverLedgerState::Apply(const ReceiverRecord& record) {
  return std::visit([this](const auto& one) { return ApplyOne(one); }, record);
}

Status ReceiverLedgerState::ApplyOne(const StreamAccepted& record) {
  DWS_RETURN_IF_ERROR(CheckStream(stream_, record.stream));
  stream_ = record.stream;
  return OkStatus();
}

Status ReceiverLedgerState::ApplyOne(const CommitIntent& record) {
  DWS_RETURN_IF_ERROR(CheckNotBelow(record.stream, record.target, "a commit intent"));
  if (open_intent_.has_value() && open_intent_->stream == record.stream &&
      record.target < open_intent_->target) {
    return FailedPreconditionError(
        "a commit intent for version {}, but version {} may have been reached: expected that "
        "version or a later one",
        record.target.value(), open_intent_->target.value());
  }
  intent_replaced_another_ = open_intent_.has_value();
  open_intent_ = record;
  return OkStatus();
}

Status ReceiverLedgerState::CheckNotBelow(const StreamId& stream, WeightVersion version,
                                          std::string_view what) const {
  DWS_RETURN_IF_ERROR(CheckCurrent(stream_, stream, what));
  if (committed_.has_value() && committed_->stream == stream && version < committed_->version) {
    return FailedPreconditionError("{} for version {}, but version {} is committed", what,
                                   version.value(), committed_->version.value());
  }
  return OkStatus();
}

Status ReceiverLedgerState::ApplyOne(const GroupDecided& record) {
  DWS_RETURN_IF_ERROR(CheckNotBelow(record.stream, record.version, "a group's decision"));
  decided_ = record;
  return OkStatus();
}

Status ReceiverLedgerState::ApplyOne(const GroupSettled& record) {
  if (!decided_.has_value()) {
    return FailedPreconditionError("version {} of stream {} is settled, but no decision is open",
                                   record.version.value(), ToString(record.stream));
  }
  decided_.reset();
  return OkStatus();
}

Status ReceiverLedgerState::CheckOpen(const StreamId& stream, WeightVersion target,
                                      std::string_view what) const {
  if (open_intent_.has_value() && open_intent_->stream == stream &&
      open_intent_->target == target) {
    return OkStatus();
  }
  const std::string open = open_intent_.has_value() ? fmt::format("for version {} of stream {}",
                                                                  open_intent_->target.value(),
                                                                  ToString(open_intent_->stream))
                                                    : "none";
  return FailedPreconditionError("{} version {} of stream {}: the open commit intent is {}", what,
                                 target.value(), ToString(stream), open);
}

Status ReceiverLedgerState::ApplyOne(const VersionCommitted& record) {
  DWS_RETURN_IF_ERROR(CheckOpen(record.stream, record.version, "committed"));
  // The intent was not below it, and only this record changes committed_.
  DWS_CHECK(!committed_.has_value() || committed_->stream != record.stream ||
            committed_->version <= record.version);
  committed_ = Committed{.stream = record.stream, .version = record.version};
  open_intent_.reset();
  intent_replaced_another_ = false;
  return OkStatus();
}

Status ReceiverLedgerState::ApplyOne(const CommitAbandoned& record) {
  DWS_RETURN_IF_ERROR(CheckOpen(record.stream, record.target, "abandoned"));
  if (intent_replaced_another_) {
    return FailedPreconditionError(
        "the intent for version {} cannot be abandoned: an earlier commit may have torn the "
        "memory; "
        "commit a complete version",
        record.target.value());
  }
  open_intent_.reset();
  return OkStatus();
}

Status ReceiverLedgerState::ApplyOne(const StreamForgotten& record) {
  DWS_RETURN_IF_ERROR(CheckForgotten(stream_, record.stream));
  if (committed_.has_value() && committed_->stream == record.stream) committed_.reset();
  if (decided_.has_value() && decided_->stream == record.stream) decided_.reset();
  if (open_intent_.has_value() && open_intent_->stream == record.stream) {
    open_intent_.reset();
    intent_replaced_another_ = false;
  }
  stream_.reset();
  const auto keep = [this](const auto& known) {
    if (!known.has_value()) return;
    if (!stream_.has_value() || known->stream.incarnation > stream_->incarnation) {
      stream_ = known->stream;
    }
  };
  keep(committed_);
  keep(open_intent_);
  keep(decided_);
  DWS_CHECK(stream_.has_value() ||
            !(committed_.has_value() || open_intent_.has_value() || decided_.has_value()));
  return OkStatus();
}

std::optional<Fence> ReceiverLedgerState::fence() const {
  if (!stream_.has_value()) return std::nullopt;
  return Fence{.stream = *stream_, .rank_epoch = RankEpoch(0)};
}

std::vector<ReceiverRecord> ReceiverLedgerState::Records() const {
  // The order in which streams were accepted: the committed one, the intent's, the newest. The
  // decision's stream is one of them or an earlier one.
  std::vector<ReceiverRecord> records;
  records.reserve(9);
  bool decided = !decided_.has_value();
  const auto accept = [&](const StreamId& stream) {
    if (!decided && decided_->stream.incarnation <= stream.incarnation) {
      records.push_back(StreamAccepted{.stream = decided_->stream});
      records.push_back(*decided_);
      decided = true;
    }
    records.push_back(StreamAccepted{.stream = stream});
  };
  if (committed_.has_value()) {
    accept(committed_->stream);
    records.push_back(CommitIntent{.stream = committed_->stream,
                                   .base = std::nullopt,
                                   .target = committed_->version,
                                   .generation = Generation()});
    records.push_back(
        VersionCommitted{.stream = committed_->stream, .version = committed_->version});
  }
  if (open_intent_.has_value()) {
    accept(open_intent_->stream);
    // Twice: the second replaces the first, which sets intent_replaced_another_ again.
    if (intent_replaced_another_) records.push_back(*open_intent_);
    records.push_back(*open_intent_);
  }
  if (stream_.has_value()) accept(*stream_);
  DWS_CHECK(decided && records.size() <= 9);
  return records;
}

}  // namespace dws
