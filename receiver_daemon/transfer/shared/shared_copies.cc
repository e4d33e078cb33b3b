// A copy that lags is as one that cannot be read: an engine that has more must not be told that its
// trainer has begun again.
#include "receiver_daemon/transfer/shared/shared_copies.h"

#include <tuple>

#include "common/base/log/log.h"

namespace dws {
namespace {

using Reach = SharedCopies::Reach;

// After so many looks that show nothing new, the other copies are looked at too; a copy that lags
// for longer is named.
constexpr uint64_t kLooksMax = 10;

Reach ReachOf(const SharedSource::Offer& offer) {
  return {offer.welcome.stream, offer.welcome.rank_epoch, offer.versions.back()};
}

// Nothing can be said of two streams of one incarnation.
bool IsOlder(const Reach& a, const Reach& b) {
  if (a.stream != b.stream) return a.stream.incarnation < b.stream.incarnation;
  return std::tie(a.epoch, a.version) < std::tie(b.epoch, b.version);
}

bool Lags(const Reach& reach, const SharedCopies::Seen& seen) {
  if (seen.followed.has_value() && reach.stream.incarnation < seen.followed->incarnation) {
    return true;
  }
  if (seen.accepted.has_value() && IsOlder(reach, *seen.accepted)) return true;
  return seen.live.has_value() && seen.live->stream == reach.stream &&
         reach.version < seen.live->version;
}

}  // namespace

SharedCopies::SharedCopies(std::vector<Copy> copies) {
  DWS_CHECK(!copies.empty());
  for (Copy& copy : copies) places_.push_back(std::make_unique<Place>(std::move(copy)));
}

void SharedCopies::AskAll() {
  for (const auto& place : places_) place->copy.pause->End();
}

Result<SharedSource::Offer> SharedCopies::LookAt(Place& place, bool may_pause,
                                                 const std::optional<StreamId>& followed) {
  MutexLock lock(place.look);
  const TimePoint begun = RealClock().Now();
  if (may_pause) DWS_RETURN_IF_ERROR(place.copy.pause->MayAsk(begun));
  auto offer = place.copy.source->Look(followed);
  const TimePoint now = RealClock().Now();
  place.copy.pause->Note(offer.status(), now - begun, now);
  // In the words of the looks that follow, which are not made.
  if (may_pause && !offer.ok()) DWS_RETURN_IF_ERROR(place.copy.pause->MayAsk(now));
  return offer;
}

Result<SharedSource::Offer> SharedCopies::LookAtNumber(size_t number, const Seen& seen,
                                                       bool& lags) {
  Place& place = *places_[number];
  const bool last = number + 1 == places_.size();
  auto offer = LookAt(place, !last, seen.followed);
  if (!offer.ok() || last || !Lags(ReachOf(*offer), seen)) return offer;
  lags = true;
  // In words that stay the same while it is frozen.
  const Reach reach = ReachOf(*offer);
  return UnavailableError(
      "{} lags: it has stream {} up to version {} of epoch {}, and something newer was seen; is it "
      "a cache that has lost its origin?",
      place.copy.root, ToString(reach.stream), reach.version.value(), reach.epoch.value());
}

Result<SharedSource::Offer> SharedCopies::Look(const Seen& seen) {
  Status passed;
  bool lags = false;
  size_t number = 0;
  auto offer = LookAtNumber(number, seen, lags);
  while (!offer.ok() && number + 1 < places_.size()) {
    if (passed.ok()) passed = offer.status();
    offer = LookAtNumber(++number, seen, lags);
  }
  looks_with_lag_ = lags ? looks_with_lag_ + 1 : 0;
  if (!offer.ok()) {
    if (passed.ok()) return offer;
    return MakeStatus(offer.status().code(),
                      fmt::format("{}; before that: {}", Message(offer.status()), Message(passed)));
  }
  // A cache may lag for a moment.
  const bool is_trouble = !lags || looks_with_lag_ > kLooksMax;
  if (offer->trouble.ok() && is_trouble) offer->trouble = passed;
  looks_without_news_ = reach_ == ReachOf(*offer) ? looks_without_news_ + 1 : 0;
  if (looks_without_news_ >= kLooksMax) {
    looks_without_news_ = 0;
    LookFurther(number, seen, *offer);
  }
  reach_ = ReachOf(*offer);
  return offer;
}

void SharedCopies::LookFurther(size_t number, const Seen& seen, Offer& offer) {
  for (++number; number < places_.size(); ++number) {
    if (!places_[number]->copy.is_remote) continue;
    auto other = LookAt(*places_[number], true, seen.followed);
    if (other.ok() && IsOlder(ReachOf(offer), ReachOf(*other))) offer = *std::move(other);
  }
}

Result<Description> SharedCopies::Describe(const SyncTarget& target, TrainerRank rank) {
  for (const auto& place : places_) {
    if (place == places_.back()) break;
    if (!place->copy.source->Has(target.stream, target.version)) continue;
    auto description = place->copy.source->Describe(target.stream, target.version);
    if (description.ok() || absl::IsCancelled(description.status())) return description;
    LogWarning("shared_description_passed_over", {{"version", target.version.value()},
                                                  {"rank", rank.value()},
                                                  {"reason", Message(description.status())}});
  }
  return Last(target).Describe(target.stream, target.version);
}

SharedSource& SharedCopies::Last(const SyncTarget& target) {
  Place& last = *places_.back();
  // The others may have been enough so far.
  if (!last.copy.source->Has(target.stream, target.version))
    (void)LookAt(last, false, target.stream);
  return *last.copy.source;
}

}  // namespace dws
