#include "tests/simulation/engine.h"

#include "tests/simulation/receiver.h"
#include "tests/simulation/world.h"

namespace dws::sim {

Engine::Engine(World& world, uint32_t site, std::string name, uint32_t part, uint32_t parts)
    : Process(world, site, std::move(name)), part_(part), parts_(parts) {}

void Engine::OnStart() {
  // The checkpoint it was started from, or nonsense.
  memory_.assign(world().ranks, {});
  if (world().random.Chance(500)) {
    for (RankWeights& rank : memory_) {
      for (Slice& slice : rank) slice[0] = world().random.Next();
    }
  }
  drifted_.assign(world().ranks, {});
  attached_ = false;
  TryAttach();
}

void Engine::OnCrash() {
  running_ = false;
  attached_ = false;
  ++attachment_;
  world().Touch();
  if (receiver_->up()) receiver_->OnEngineGone();
}

void Engine::TryAttach() {
  if (!attached_ && receiver_->up()) {
    attached_ = true;
    running_ = false;  // engines attach paused
    ++attachment_;
    world().Touch();
    receiver_->OnAttach();
  }
  After(kRoundTrip / 2 + world().random.Below(kRoundTrip / 4), [this] { TryAttach(); });
}

void Engine::Pause(uint64_t attachment, std::function<void(const Status&)> done) {
  World& w = world();
  const bool answers = !(w.faulty && w.random.Chance(20));
  // It ends the forward pass it is in.
  w.events.After(w.random.Below(kRoundTrip / 4), [this, attachment, answers, done] {
    if (!up() || attachment != attachment_) return done(UnavailableError("the engine is gone"));
    if (!answers) return done(DeadlineExceededError("the engine does not answer"));
    running_ = false;
    world().Touch();
    done(OkStatus());
  });
}

void Engine::Resume(uint64_t attachment, const VersionAt& version) {
  if (!up() || attachment != attachment_) return;
  running_ = true;
  claimed_ = version;
  world().Touch();
  world().Trace("{} runs with {}:{}", name(), version.stream.incarnation, version.version.value());
}

void Engine::Write(uint64_t attachment, uint32_t rank, uint32_t slice, uint32_t word,
                   uint64_t value) {
  if (attachment != attachment_) return;  // a mapping of a process that is gone
  if (running_) world().Violate("{} is written to while it runs", name());
  memory_[rank][slice][word] = value;
  drifted_[rank][slice][word] = false;
  world().Touch();
}

std::vector<SliceState> Engine::ReadDigests(uint32_t rank) {
  std::vector<SliceState> states;
  drifted_[rank] = {};
  for (uint32_t s = 0; s < kSlices; ++s) {
    if (Holds(rank, s)) {
      states.push_back({.kind = SliceState::Kind::kHeld, .digest = DigestOf(s, memory_[rank][s])});
    } else {
      states.push_back({});
    }
  }
  return states;
}

void Engine::Drift() {
  const auto rank = static_cast<uint32_t>(world().random.Below(world().ranks));
  const auto slice = static_cast<uint32_t>(world().random.Below(kSlices));
  const auto word = static_cast<uint32_t>(world().random.Below(kWords));
  if (!up() || !Holds(rank, slice)) return;
  memory_[rank][slice][word] ^= uint64_t{1} << world().random.Below(64);
  drifted_[rank][slice][word] = true;
}

bool Engine::Equals(const std::vector<std::optional<RankWeights>>& version) const {
  for (uint32_t r = 0; r < memory_.size(); ++r) {
    for (uint32_t s = 0; s < kSlices; ++s) {
      if (!Holds(r, s)) continue;
      for (uint32_t w = 0; w < kWords; ++w) {
        if (!drifted_[r][s][w] && memory_[r][s][w] != (*version[r])[s][w]) return false;
      }
    }
  }
  return true;
}

}  // namespace dws::sim
