// A read runs without the lock: several read at a time, and an offer ends when all have.
#include "receiver_daemon/weights/served_weights.h"

#include <utility>

#include "common/base/check.h"

namespace dws {

void ServedWeights::Offer(EngineWeightsPtr weights, const VersionAt& at) {
  DWS_CHECK(weights != nullptr);
  {
    MutexLock lock(mutex_);
    if (offered_.has_value() && offered_->weights == weights && offered_->at == at) return;
  }
  Withdraw();
  MutexLock lock(mutex_);
  offered_ = {.number = ++last_number_, .weights = std::move(weights), .at = at};
}

void ServedWeights::Withdraw() {
  std::optional<Offered> ended;
  MutexLock lock(mutex_);
  ended = std::exchange(offered_, std::nullopt);
  while (reads_ > 0) read_.Wait(mutex_);
}

Result<ServedWeights::Found> ServedWeights::Find(const VersionAt& at, TrainerRank rank,
                                                 const Digest& layout) const {
  MutexLock lock(mutex_);
  if (!offered_.has_value() || offered_->at != at) {
    return AbortedError(
        "version {} of stream {} is not the version of this engine now, which has {}",
        at.version.value(), ToString(at.stream),
        offered_.has_value() ? fmt::format("{}", offered_->at.version.value()) : "none proved");
  }
  const LayoutSetPtr& layouts = offered_->weights->layouts_ptr();
  if (rank.value() >= layouts->world_size() || layouts->rank(rank).signature() != layout) {
    return AbortedError("this receiver does not have the layout of trainer rank {} that is named",
                        rank.value());
  }
  return Found{.number = offered_->number, .layouts = layouts};
}

bool ServedWeights::Holds(uint64_t number, TrainerRank rank, RankSlice slice) const {
  MutexLock lock(mutex_);
  return offered_.has_value() && offered_->number == number &&
         offered_->weights->Holds(rank, slice);
}

Status ServedWeights::Read(uint64_t number, TrainerRank rank, const BlockRange& range,
                           MutableByteSpan out) {
  EngineWeightsPtr weights;
  {
    MutexLock lock(mutex_);
    if (!offered_.has_value() || offered_->number != number) {
      return AbortedError("the engine gets another version");
    }
    weights = offered_->weights;
    ++reads_;
  }
  Status status = weights->Read(rank, range.slice, range.first_block, out);
  weights.reset();  // before Withdraw returns
  MutexLock lock(mutex_);
  DWS_CHECK(reads_ > 0);
  --reads_;
  read_.NotifyAll();
  return status;
}

}  // namespace dws
