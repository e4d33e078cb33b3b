#include "tests/simulation/nodes/engine.h"

#include <fcntl.h>

#include <algorithm>
#include <utility>

#include "common/base/check.h"
#include "tests/simulation/nodes/receiver.h"
#include "tests/simulation/world.h"

namespace dws::sim {

Engine::Engine(World& world, uint32_t site, std::string name, uint32_t part, uint32_t parts)
    : Node(world, site, std::move(name)), part_(part), parts_(parts) {}

void Engine::OnStart() {
  auto made = CreateHostRegion("simulated-engine", memory_bytes());
  DWS_CHECK(made.ok());
  memory_ = *std::move(made);
  has_hook_ = world().random.Chance(500);
  // The checkpoint it was started from, or random words.
  if (world().random.Chance(500)) {
    for (size_t first = 0; first < Words().size(); first += kWords) {
      Words()[first] = world().random.Next();
    }
  }
  drifted_.clear();
  attached_ = false;
  TryAttach();
}

void Engine::OnCrash() {
  running_ = false;
  attached_ = false;
  ++attachment_;
  memory_ = {};
  world().Touch();
  if (receiver_->up()) receiver_->OnEngineGone();
}

uint64_t Engine::memory_bytes() const { return world().ranks * kSlices * kSliceBytes; }

std::span<uint64_t> Engine::Words() const {
  const ByteSpan bytes = memory_.region.bytes();
  return {reinterpret_cast<uint64_t*>(const_cast<std::byte*>(bytes.data())), bytes.size() / 8};
}

UniqueFd Engine::MemoryDescriptor() const {
  return UniqueFd(::fcntl(memory_.fd.get(), F_DUPFD_CLOEXEC, 0));
}

std::vector<EngineView> Engine::Views() const {
  std::vector<EngineView> views;
  for (uint32_t r = 0; r < world().ranks; ++r) {
    for (uint32_t s = 0; s < kSlices; ++s) {
      if (!Holds(r, s)) continue;
      const std::string tensor = TensorName(r);
      views.push_back(
          {.engine_name = fmt::format("{}.{}", tensor, s),
           .tensor = tensor,
           .dtype = DType::kU64,
           .ranges = {{.dim = 0,
                       .range = {.begin = uint64_t{s} * kWords, .end = uint64_t{s + 1} * kWords}}},
           .shape = {kWords},
           .strides = {1},
           .region = 0,
           .offset_bytes = WordOf(r, s) * 8});
    }
  }
  return views;
}

void Engine::TryAttach() {
  if (!attached_ && receiver_->up()) {
    running_ = false;  // engines attach paused
    ++attachment_;
    world().Touch();
    attached_ = receiver_->Attach();
  }
  After(kRoundTrip / 2 + world().random.Below(kRoundTrip / 4), [this] { TryAttach(); });
}

void Engine::Pause(uint64_t attachment, std::function<void(const Status&)> done) {
  World& w = world();
  // It ends its current forward pass; sometimes that takes longer than the receiver waits.
  Time pass = w.random.Below(kRoundTrip / 4);
  if (w.faulty && w.random.Chance(20)) pass += w.random.Between(1, 4) * kRoundTrip;
  w.events.After(pass, [this, attachment, resumes = resumes_, done] {
    if (!up() || attachment != attachment_) return done(UnavailableError("the engine is gone"));
    // A cancelled pause: the RESUME that followed is read together with it.
    if (resumes == resumes_) running_ = false;
    world().Touch();
    done(OkStatus());
  });
}

std::string Engine::PostCommit() {
  return world().faulty && world().random.Chance(20) ? "the hook failed" : "";
}

void Engine::Resume(uint64_t attachment, const VersionAt& version) {
  if (!up() || attachment != attachment_) return;
  ++resumes_;
  running_ = true;
  claimed_ = version;
  world().Touch();
  world().Trace("{} runs with {}:{}", name(), version.stream.incarnation, version.version.value());
}

void Engine::Drift() {
  const auto rank = static_cast<uint32_t>(world().random.Below(world().ranks));
  const auto slice = static_cast<uint32_t>(world().random.Below(kSlices));
  const auto word = static_cast<uint32_t>(world().random.Below(kWords));
  const uint64_t bit = uint64_t{1} << world().random.Below(64);
  if (!up() || !Holds(rank, slice)) return;
  const size_t at = WordOf(rank, slice) + word;
  Words()[at] ^= bit;
  drifted_.push_back({.word = at, .value = Words()[at]});
}

bool Engine::Equals(const std::vector<std::optional<RankWeights>>& version) const {
  const std::span<const uint64_t> words = Words();
  const auto excused = [&](size_t at) {
    return std::any_of(drifted_.begin(), drifted_.end(), [&](const Drifted& drifted) {
      return drifted.word == at && drifted.value == words[at];
    });
  };
  for (uint32_t r = 0; r < version.size(); ++r) {
    for (uint32_t s = 0; s < kSlices; ++s) {
      if (!Holds(r, s)) continue;
      for (uint32_t w = 0; w < kWords; ++w) {
        const size_t at = WordOf(r, s) + w;
        if (words[at] != (*version[r])[s][w] && !excused(at)) return false;
      }
    }
  }
  return true;
}

}  // namespace dws::sim
