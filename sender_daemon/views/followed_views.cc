#include "sender_daemon/views/followed_views.h"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <optional>
#include <set>
#include <utility>

#include "common/base/bytes.h"
#include "common/base/check.h"
#include "common/base/log/log.h"
#include "common/model/digest/digest.h"
#include "common/model/identity_limits.h"
#include "common/model/limits.h"

namespace dws {
namespace {

// A receiver that restarts within this time finds that its view still exists.
constexpr std::chrono::minutes kUnusedMax{2};
// How long a view that begins waits for the trainer's newest version to be recorded.
constexpr std::chrono::seconds kSealWait{1};
// How long a version of the trainer's waits for the exchange about the version before.
constexpr std::chrono::seconds kExchangeWait{1};

bool IsIn(const std::vector<std::string>& names, const std::string& name) {
  return std::ranges::find(names, name) != names.end();
}

// The name of what senders exchange about a view.
std::string ExchangedName(const std::string& view) {
  return fmt::format("{}{}", kExchangedName, ToString(DigestBytes(AsBytes(view), 0)));
}

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
    if (begun.ok()) {
      refused_.erase(name);
      continue;
    }
    if (refused_.size() > limits::kViewsFollowedMax) refused_.clear();  // anybody names views
    const Status last = std::exchange(refused_[name], begun);
    const bool memory = absl::IsResourceExhausted(last) && absl::IsResourceExhausted(begun);
    if (last != begun && !memory) {  // what is available is another figure each time
      LogWarning("view_refused", {{"view", name}, {"reason", Message(begun)}});
    }
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
    DWS_ASSIGN_OR_RETURN(followed.view,
                         ViewSnapshot::Create(name, trainer_, parts_.log_limits, Device()));
    DWS_RETURN_IF_ERROR(
        CheckDivided(followed.view->view(), trainer_->layout(), trainer_->world_size));
    LogInfo("view_begun",
            {{"view", name}, {"bytes", followed.view->state()->layout().size_bytes()}});
    for (const std::string& share : followed.view->view().unused_shares()) {
      LogWarning("view_share_unused", {{"view", name}, {"share", share}});
    }
    followed.former = former;
    Fill(name, followed);
  }
  followed_[name] = std::move(followed);
  return OkStatus();
}

std::shared_ptr<DeviceTiles> FollowedViews::Device() {
  std::shared_ptr<DeviceTiles> device = device_.lock();
  if (device == nullptr) {
    device = std::make_shared<DeviceTiles>(trainer_, DeviceTiles::Options());
    device_ = device;
  }
  return device;
}

void FollowedViews::Fill(const std::string& name, Followed& followed) {
  ViewSnapshot& view = *followed.view;
  const std::optional<WeightVersion> version = trainer_->snapshot->version();
  const bool divided = view.is_divided();
  const std::optional<WeightVersion> newest = view.state()->snapshot->newest();
  const bool has = divided ? newest == version || followed.pending.has_value() : newest.has_value();
  // A version that is not recorded, yet or ever, is not announced. The next version then fills the
  // view.
  if (version.has_value() && !open_ && !has && parts_.pipeline.Drain(kSealWait).ok() &&
      trainer_->log->Find(*version) != nullptr) {
    const TimePoint began = parts_.clock.Now();
    if (divided) {
      view.Measure(*version, nullptr, parts_.pool);
      Await(name, followed, {.version = *version});
    } else {
      Retain(followed, view.CaptureVersion(*version, nullptr, parts_.pool), began);
    }
    if (Exchanges(view)) Tell(MessageOf(followed, *version));
  }
  parts_.hub.SetView(name, view.state());
}

void FollowedViews::Retain(Followed& followed, CapturedVersion captured, TimePoint began) {
  const RankStatePtr& state = followed.view->state();
  const WeightVersion version = captured.version;
  SealJob job{.state = state, .captured = std::move(captured), .accepted_at = began};
  job.capture_seconds = ToSeconds(parts_.clock.Now() - began);
  RetainedVersionPtr sealed = Seal(std::move(job));
  if (followed.former != nullptr && followed.former->version == version) {
    sealed = Restated(*followed.former, state->layout().signature(), sealed->after);
  }
  state->log->Append(std::move(sealed));
  followed.former = nullptr;
}

Status FollowedViews::CheckDivided(const quantise::ViewLayout& view, const RankLayout& trainer,
                                   uint32_t world_size) const {
  const std::optional<std::string> tensor = view.DividedTensor(trainer);
  if (!tensor.has_value()) return OkStatus();
  const std::string what =
      fmt::format("tensor {}: recipe {} has one scale a matrix, and other trainer ranks have parts",
                  *tensor, view.recipe().id);
  if (exchange_ == nullptr) {
    return InvalidArgumentError(
        "{}: start the senders of all ranks with --train-peers, by which they exchange the amax",
        what);
  }
  if (exchange_->ranks() == world_size) return OkStatus();
  return InvalidArgumentError(
      "{}: expected --train-peers to name the senders of all {} ranks, found {}", what, world_size,
      exchange_->ranks());
}

bool FollowedViews::Exchanges(const ViewSnapshot& view) const {
  return exchange_ != nullptr && view.view().recipe().has_tensor_scale;
}

UntoldAmax FollowedViews::MessageOf(const Followed& followed, WeightVersion version) const {
  ViewSnapshot& view = *followed.view;
  const MatrixAmax& amax = view.Measure(version, nullptr, parts_.pool);
  return {.view = followed.view,
          .version = version,
          .message = AmaxMessage({.stream = view.state()->stream, .version = version}, view.view(),
                                 view.trainer().layout(), amax)};
}

// A rank without parts of its own is asked, too, because the others cannot know that.
void FollowedViews::Tell(UntoldAmax untold) {
  const std::string name = untold.view->view().layout().view();
  ObjectExchange::Take take;
  if (untold.view->is_divided()) {
    // A call that waits for another rank must not keep the view's memory.
    take = [this, name, weak = std::weak_ptr<ViewSnapshot>(untold.view),
            version = untold.version](const std::vector<ObjectExchange::Bytes>& objects) -> Status {
      const std::shared_ptr<ViewSnapshot> view = weak.lock();
      if (view == nullptr) return OkStatus();
      OtherAmax all({.stream = view->state()->stream, .version = version}, view->view(),
                    view->trainer().layout());
      for (const ObjectExchange::Bytes& object : objects) {
        if (!object.empty()) DWS_RETURN_IF_ERROR(all.Add(object));
      }
      DWS_ASSIGN_OR_RETURN(MatrixAmax::Others others, std::move(all).Finish());
      if (!awaited_.Arrive(name, view, version, std::move(others))) return OkStatus();
      // If nobody takes it there, the next version does when it begins.
      (void)parts_.executor.Post([this, name] {
        const auto found = followed_.find(name);
        if (found != followed_.end()) Complete(name, found->second);
      });
      return OkStatus();
    };
  }
  const Status begun =
      exchange_->Begin({.name = ExchangedName(name), .number = untold.version.value()},
                       std::move(untold.message), std::move(take));
  if (!begun.ok()) {
    LogWarning("view_not_exchanged",
               {{"view", name}, {"version", untold.version.value()}, {"reason", Message(begun)}});
    awaited_.NoteUntold(name, begun);
  }
}

void FollowedViews::OnRecorded(WeightVersion version) {
  for (UntoldAmax& one : awaited_.Recorded(version)) Tell(std::move(one));
}

void FollowedViews::Await(const std::string& name, Followed& followed, Pending pending) {
  followed.pending = std::move(pending);
  awaited_.Begin(name);
}

std::string FollowedViews::Lacks(const std::string& name) const {
  Status why = awaited_.WhyUntold(name);
  if (why.ok()) why = exchange_->Awaited(ExchangedName(name));
  return why.ok() ? "this sender has not recorded the version yet" : std::string(Message(why));
}

std::optional<PlaceFailure> FollowedViews::failure() const {
  std::set<std::string> missed = parts_.hub.FollowedViews();
  missed.insert(parts_.kept.begin(), parts_.kept.end());
  const auto behind = awaited_.LongestBehind(kExchangeWait, missed);
  if (!behind.has_value()) return std::nullopt;
  return PlaceFailure{.reason = fmt::format("view '{}' does not get the trainer's versions: {}",
                                            behind->first, Lacks(behind->first)),
                      .lasts = behind->second};
}

void FollowedViews::Complete(const std::string& name, Followed& followed) {
  if (!followed.pending.has_value() || open_) return;
  const Pending& pending = *followed.pending;
  const auto others = awaited_.Take(name, followed.view, pending.version);
  if (!others.has_value()) return;
  DWS_CHECK(trainer_->snapshot->version() == pending.version);
  const TimePoint began = parts_.clock.Now();
  Retain(followed,
         followed.view->CaptureVersion(pending.version, pending.steps.get(), parts_.pool, &*others),
         began);
  parts_.on_captured(parts_.clock.Now() - began);
  followed.pending.reset();
  followed.in_time = true;
  parts_.on_late(followed.view->state());
}

void FollowedViews::OnOpening() {
  const TimePoint until = parts_.clock.Now() + kExchangeWait;
  for (auto& [name, followed] : followed_) {
    if (!followed.pending.has_value()) continue;
    const WeightVersion version = followed.pending->version;
    if (followed.in_time) awaited_.WaitUntil(until, name, followed.view, version);
    Complete(name, followed);
    if (!followed.pending.has_value()) continue;
    followed.pending.reset();
    parts_.on_left_out();
    if (!std::exchange(followed.in_time, false)) continue;
    LogWarning("view_version_left_out",
               {{"view", name}, {"version", version.value()}, {"reason", Lacks(name)}});
  }
  open_ = true;
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
  device_.reset();
  std::map<std::string, RetainedVersionPtr> views;
  for (const auto& [name, followed] : followed_) {
    RetainedVersionPtr& former = views[name];
    if (refined && followed.view != nullptr) former = followed.view->state()->log->Newest();
  }
  for (const std::string& name : parts_.kept) views.try_emplace(name);
  followed_.clear();  // before the next ones take memory
  ForgetExchanges();
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
    const auto view = quantise::ViewLayout::Create(name, trainer);
    Status fits = view.status();
    if (fits.ok()) fits = CheckDivided(*view, trainer, trainer_->world_size);
    if (!fits.ok()) return Annotate(fits, fmt::format("view '{}', which is followed", name));
  }
  return OkStatus();
}

void FollowedViews::Forget() {
  trainer_ = nullptr;
  followed_.clear();
  ForgetExchanges();
  open_ = false;
}

void FollowedViews::ForgetExchanges() {
  if (exchange_ != nullptr) exchange_->BeginAgain();
  awaited_.Clear();
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
    if (IsIn(parts_.kept, it->first) || names.contains(it->first)) it->second.used_at = now;
    if (now - it->second.used_at <= kUnusedMax) {
      ++it;
      continue;
    }
    LogInfo("view_dropped", {{"view", it->first}, {"reason", "nobody follows it"}});
    parts_.hub.SetView(it->first, nullptr);
    if (exchange_ != nullptr) exchange_->End(ExchangedName(it->first));
    awaited_.Drop(it->first, it->second.view);
    it = followed_.erase(it);
  }
}

std::vector<ViewJob> FollowedViews::OnCaptured(const CapturedVersion& captured) {
  open_ = false;
  DropUnused();
  std::vector<ViewJob> jobs;
  if (followed_.empty()) return jobs;
  const TimePoint began = parts_.clock.Now();
  std::vector<UntoldAmax> untold;
  std::shared_ptr<const CapturedVersion> steps;
  for (auto& [name, followed] : followed_) {
    if (followed.view == nullptr) continue;
    ViewSnapshot& view = *followed.view;
    followed.former = nullptr;
    if (view.is_divided()) {
      view.Measure(captured.version, &captured, parts_.pool);
      if (steps == nullptr && captured.base.has_value()) {
        steps = std::make_shared<const CapturedVersion>(CapturedVersion{.version = captured.version,
                                                                        .base = captured.base,
                                                                        .blocks = captured.blocks,
                                                                        .mended = captured.mended});
      }
      Await(name, followed, {.version = captured.version, .steps = steps});
    } else {
      jobs.push_back({.state = view.state(),
                      .captured = view.CaptureVersion(captured.version, &captured, parts_.pool)});
    }
    if (Exchanges(view)) untold.push_back(MessageOf(followed, captured.version));
  }
  awaited_.Keep(std::move(untold));
  if (!jobs.empty()) parts_.on_captured(parts_.clock.Now() - began);
  return jobs;
}

}  // namespace dws
