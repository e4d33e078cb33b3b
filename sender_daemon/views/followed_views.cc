#include "sender_daemon/views/followed_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "common/base/log/log.h"
#include "common/model/identity_limits.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// A receiver that restarts within this time finds that its view still exists.
constexpr std::chrono::minutes kUnusedMax{2};
// How long a view that begins waits for the trainer's newest version to be recorded.
constexpr std::chrono::seconds kSealWait{1};

}  // namespace

// If many receivers come at once, the task of the first one begins all their views, because the
// queue is the trainer's too.
void FollowedViews::Follow(const std::string& name, const Refused& refused) {
  if (parts_.hub.Current(name) != nullptr) return;
  {
    MutexLock lock(mutex_);
    const bool posted = !asked_.empty();
    asked_[name].push_back(refused);
    if (posted) return;
  }
  if (parts_.executor.Post([this] { BeginAsked(); })) return;
  std::map<std::string, std::vector<Refused>> asked;
  {
    MutexLock lock(mutex_);
    asked.swap(asked_);
  }
  const Status busy = UnavailableError("the sender is busy with its trainer's calls; try again");
  for (const auto& [view, receivers] : asked) {
    for (const Refused& tell : receivers) tell(busy);
  }
}

void FollowedViews::BeginAsked() {
  std::map<std::string, std::vector<Refused>> asked;
  {
    MutexLock lock(mutex_);
    asked.swap(asked_);
  }
  for (const auto& [name, receivers] : asked) {
    const Status begun = Begin(name);
    if (begun.ok()) continue;
    LogWarning("view_refused", {{"view", name}, {"reason", Message(begun)}});
    for (const Refused& tell : receivers) tell(begun);
  }
}

Status FollowedViews::Begin(const std::string& name, const RetainedVersionPtr& former) {
  DropUnused();
  const auto found = followed_.find(name);
  if (found != followed_.end() && found->second.view != nullptr) return OkStatus();
  if (found == followed_.end() && followed_.size() >= limits::kViewsFollowedMax) {
    return ResourceExhaustedError("{} views are followed, at most {} are supported",
                                  followed_.size(), limits::kViewsFollowedMax);
  }
  Followed followed{.view = nullptr, .used_at = parts_.clock.Now()};
  if (trainer_ != nullptr) {  // if there is no state yet, OnState begins it
    DWS_ASSIGN_OR_RETURN(followed.view, ViewSnapshot::Create(name, trainer_, parts_.log_limits));
    LogInfo("view_begun",
            {{"view", name}, {"bytes", followed.view->state()->layout().size_bytes()}});
    followed.former = former;
    Fill(name, followed);
  }
  followed_[name] = std::move(followed);
  return OkStatus();
}

void FollowedViews::Fill(const std::string& name, Followed& followed) {
  ViewSnapshot& view = *followed.view;
  const std::optional<WeightVersion> version = trainer_->snapshot->version();
  const bool lacks = version.has_value() && !open_ && !view.state()->snapshot->newest().has_value();
  // A version that is not recorded yet is not announced. The next version then fills the view.
  if (lacks && parts_.pipeline.Drain(kSealWait).ok()) {
    const TimePoint began = parts_.clock.Now();
    SealJob job{.state = view.state(),
                .captured = view.CaptureVersion(*version, nullptr, parts_.pool),
                .accepted_at = began};
    job.capture_seconds = ToSeconds(parts_.clock.Now() - began);
    RetainedVersionPtr sealed = Seal(std::move(job));
    if (followed.former != nullptr && followed.former->version == *version) {
      sealed = Restated(*followed.former, view.state()->layout().signature(), sealed->after);
    }
    view.state()->log->Append(std::move(sealed));
    followed.former = nullptr;
  }
  parts_.hub.SetView(name, view.state());
}

void FollowedViews::OnState(RankStatePtr trainer) {
  open_ = false;
  if (trainer_ == trainer) {  // its trainer has registered again
    OnGivenUp();
    return;
  }
  const bool refined = trainer_ != nullptr && trainer_->stream == trainer->stream &&
                       SameButCuts(trainer_->layout(), trainer->layout());
  trainer_ = std::move(trainer);
  std::map<std::string, RetainedVersionPtr> views;
  for (const auto& [name, followed] : followed_) {
    RetainedVersionPtr& former = views[name];
    if (refined && followed.view != nullptr) former = followed.view->state()->log->Newest();
  }
  for (const std::string& name : parts_.kept) views.try_emplace(name);
  followed_.clear();  // before the next ones take memory
  for (const auto& [name, former] : views) {
    if (const Status begun = Begin(name, former); !begun.ok()) {
      LogWarning("view_ended", {{"view", name}, {"reason", Message(begun)}});
      parts_.hub.EndView(name, begun);
    }
  }
}

Status FollowedViews::CheckLayout(const RankLayout& trainer) const {
  for (const auto& [name, followed] : followed_) {
    if (followed.view == nullptr) continue;
    const Status fits = quantise::ViewLayout::Create(name, trainer).status();
    if (!fits.ok()) return Annotate(fits, fmt::format("view '{}', which is followed", name));
  }
  return OkStatus();
}

void FollowedViews::Forget() {
  trainer_ = nullptr;
  followed_.clear();
  open_ = false;
}

void FollowedViews::OnGivenUp() {
  open_ = false;
  for (auto& [name, followed] : followed_) {
    if (followed.view != nullptr) Fill(name, followed);
  }
}

void FollowedViews::DropUnused() {
  const std::set<std::string> names = parts_.hub.FollowedViews();
  const TimePoint now = parts_.clock.Now();
  for (auto it = followed_.begin(); it != followed_.end();) {
    const bool kept = std::ranges::find(parts_.kept, it->first) != parts_.kept.end();
    if (kept || names.contains(it->first)) it->second.used_at = now;
    if (now - it->second.used_at <= kUnusedMax) {
      ++it;
      continue;
    }
    LogInfo("view_dropped", {{"view", it->first}, {"reason", "nobody follows it"}});
    parts_.hub.SetView(it->first, nullptr);
    it = followed_.erase(it);
  }
}

std::vector<ViewJob> FollowedViews::OnCaptured(const CapturedVersion& captured) {
  open_ = false;
  DropUnused();
  std::vector<ViewJob> jobs;
  if (followed_.empty()) return jobs;
  const TimePoint began = parts_.clock.Now();
  for (auto& [name, followed] : followed_) {
    if (followed.view == nullptr) continue;
    followed.former = nullptr;
    jobs.push_back(
        {.state = followed.view->state(),
         .captured = followed.view->CaptureVersion(captured.version, &captured, parts_.pool)});
  }
  if (!jobs.empty()) parts_.on_captured(parts_.clock.Now() - began);
  return jobs;
}

}  // namespace dws
