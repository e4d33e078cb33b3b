#include "sender_daemon/publish/offer_loop.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "common/base/check.h"
#include "common/base/log/log.h"

namespace dws {

OfferLoop::OfferLoop(Options options, Step step)
    : options_(std::move(options)), step_(std::move(step)) {
  DWS_CHECK(step_ != nullptr);
}

OfferLoop::~OfferLoop() { Stop(); }

void OfferLoop::Start() {
  DWS_CHECK(!thread_.joinable());
  thread_ = std::thread([this] { Run(); });
}

void OfferLoop::Offer(RankStatePtr state) {
  MutexLock lock(mutex_);
  offered_ = std::move(state);
  ++offers_;
  changed_.NotifyAll();
}

bool OfferLoop::settled() const {
  MutexLock lock(mutex_);
  DWS_CHECK(served_ <= offers_ && failed_ <= offers_);
  return served_ == offers_ || (!trouble_.ok() && failed_ == offers_);
}

void OfferLoop::Stop() {
  stopping_.store(true);
  {
    MutexLock lock(mutex_);
    changed_.NotifyAll();
  }
  if (thread_.joinable()) thread_.join();
}

Status OfferLoop::trouble() const {
  MutexLock lock(mutex_);
  return trouble_;
}

uint64_t OfferLoop::failures() const {
  MutexLock lock(mutex_);
  return failures_;
}

std::optional<PlaceFailure> OfferLoop::failure() const {
  MutexLock lock(mutex_);  // taken first: a round that begins sets both of the values below
  const TimePoint now = std::chrono::steady_clock::now();
  const Duration still = now - asked_at_.load();
  if (working_ && still >= options_.still_max) {
    return PlaceFailure{.reason = "writing makes no progress: does the mount hang?",
                        .lasts = still};
  }
  if (trouble_.ok()) return std::nullopt;
  return PlaceFailure{.reason = std::string(Message(trouble_)), .lasts = now - trouble_since_};
}

Result<bool> OfferLoop::StepOnce() {
  uint64_t seen = 0;
  return Round(seen);
}

Result<bool> OfferLoop::Round(uint64_t& seen) {
  RankStatePtr offered;
  {
    MutexLock lock(mutex_);
    seen = offers_;
    offered = offered_;
    if (offered == nullptr) return false;
    asked_at_.store(std::chrono::steady_clock::now());
    working_ = true;
  }
  Result<bool> more = step_(offered);
  MutexLock lock(mutex_);
  working_ = false;
  return more;
}

void OfferLoop::Run() {
  Duration delay = options_.retry_delay;
  Duration soon = options_.soon;
  while (!stopping_.load()) {
    uint64_t seen = 0;
    const Result<bool> more = Round(seen);
    if (!more.ok()) Fail(more.status(), seen);
    if (more.ok() && *more) {
      soon = options_.soon;
      delay = options_.retry_delay;
      MutexLock lock(mutex_);
      trouble_ = OkStatus();
      continue;
    }
    Duration wait = limits::kOfferPoll;
    if (more.ok()) {
      delay = options_.retry_delay;
      if (options_.impatient && options_.impatient()) {
        wait = std::exchange(soon, std::min<Duration>(soon + soon / 4, limits::kOfferPoll));
      }
    } else {
      wait = std::exchange(delay, std::min<Duration>(delay * 2, limits::kOfferRetryDelayMax));
    }
    MutexLock lock(mutex_);
    if (more.ok()) {
      DWS_CHECK(served_ <= seen);
      served_ = seen;
      trouble_ = OkStatus();
    }
    // After a failure a new version does not cause an immediate retry.
    const bool woken_by_offers = more.ok();
    const auto until = std::chrono::steady_clock::now() + wait;
    while (!stopping_.load() && !(woken_by_offers && offers_ != seen)) {
      const auto left = until - std::chrono::steady_clock::now();
      if (left <= Duration::zero()) break;
      changed_.WaitFor(mutex_, left);
    }
  }
}

void OfferLoop::Fail(const Status& status, uint64_t offers) {
  if (absl::IsCancelled(status)) return;
  bool changed = false;
  {
    MutexLock lock(mutex_);
    changed = trouble_ != status;
    if (trouble_.ok()) trouble_since_ = std::chrono::steady_clock::now();
    failed_ = offers;
    trouble_ = status;
    ++failures_;
  }
  if (changed) LogError(options_.failed_event, {{"reason", Message(status)}});
}

}  // namespace dws
