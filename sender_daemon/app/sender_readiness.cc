// Threads publish the readiness in the order in which they read the state.
#include "sender_daemon/app/sender_readiness.h"

#include <fmt/format.h>

#include <chrono>
#include <utility>

namespace dws {

void SenderReadiness::SetRegistered(bool registered) {
  {
    MutexLock lock(mutex_);
    registered_ = registered;
  }
  Update();
}

void SenderReadiness::SetTrouble(const Status& trouble) {
  {
    MutexLock lock(mutex_);
    if (trouble_ == trouble) return;
    trouble_ = trouble;
  }
  Update();
}

void SenderReadiness::Update() {
  MutexLock telling(telling_mutex_);
  std::string reason = Reason();
  if (told_ == reason) return;
  told_ = std::move(reason);
  parts_.show(told_->empty(), *told_);
}

std::optional<PlaceFailure> SenderReadiness::Failure() const {
  std::optional<PlaceFailure> longest = parts_.views();
  for (const auto& place : parts_.places) {
    std::optional<PlaceFailure> failure = place->failure();
    if (!failure.has_value() || (longest.has_value() && failure->lasts <= longest->lasts)) continue;
    failure->reason =
        fmt::format("nothing can be published to --{}: {}", place->name(), failure->reason);
    longest = std::move(failure);
  }
  return longest;
}

std::string SenderReadiness::Reason() const {
  {
    MutexLock lock(mutex_);
    if (!trouble_.ok()) {
      return fmt::format("versions cannot be recorded: {}", Message(trouble_));
    }
    if (!registered_) return "waiting for " + parts_.awaited;
  }
  if (parts_.drain.draining()) {
    return "drained by the operator: no version is taken until `dwsctl undrain`";
  }
  const Duration after = parts_.place_stale_after;
  if (after == Duration::zero()) return "";
  const std::optional<PlaceFailure> failure = Failure();
  if (!failure.has_value() || failure->lasts < after) return "";
  return fmt::format("for more than {} s {}",
                     std::chrono::ceil<std::chrono::seconds>(after).count(), failure->reason);
}

}  // namespace dws
