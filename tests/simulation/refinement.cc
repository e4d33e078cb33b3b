// A part that is at a version is compared with it in each call, so that a write that no step allows
// is found too.
#include "tests/simulation/refinement.h"

#include "tests/simulation/nodes/engine.h"
#include "tests/simulation/nodes/receiver.h"
#include "tests/simulation/nodes/sender.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

std::string Name(const VersionAt& at) {
  return fmt::format("{}:{}", at.stream.incarnation, at.version.value());
}

std::pair<uint64_t, uint64_t> Key(const VersionAt& at) {
  return {at.stream.incarnation, at.version.value()};
}

}  // namespace

void Refinement::Check() {
  for (const EngineUnit& unit : world_.units) CheckUnit(unit, units_[&unit]);
  CheckSenders();
}

void Refinement::CheckUnit(const EngineUnit& unit, Unit& model) {
  const std::optional<VersionAt> decided = unit.parts.front()->receiver().decided();
  if (decided.has_value()) model.decided.insert(Key(*decided));
  for (const Engine* part : unit.parts) {
    if (part->receiver().committing()) {
      model.writing.insert(part);
      continue;
    }
    const bool committed = model.writing.erase(part) > 0;
    const std::optional<VersionAt> now = part->receiver().believed();
    if (!now.has_value()) {
      model.at.erase(part);
      continue;
    }
    CheckMemory(*part, *now);
    const auto [before, proved] = model.at.try_emplace(part, *now);
    if (committed || before->second != *now) {
      CheckCommit(unit, model, *part, proved ? std::nullopt : std::optional(before->second), *now);
    }
    before->second = *now;
  }
  for (const Engine* part : unit.parts) {
    if (!part->running()) {
      model.running.erase(part);
      continue;
    }
    const VersionAt& claimed = part->claimed();
    const auto mine = model.at.find(part);
    const bool known = mine != model.at.end() && !model.writing.contains(part);
    if (known && mine->second != claimed) {
      return world_.Violate("{} runs with {}, its receiver takes it to be at {}", part->name(),
                            Name(claimed), Name(mine->second));
    }
    const auto before = model.running.find(part);
    if (before != model.running.end() && before->second == claimed) continue;
    CheckRelease(unit, model, *part);
    model.running.insert_or_assign(part, claimed);
    if (!model.newest.has_value() || Before(*model.newest, claimed)) model.newest = claimed;
  }
}

void Refinement::CheckMemory(const Engine& part, const VersionAt& at) {
  const auto* version = world_.truth.Find(at);
  if (version == nullptr) {
    return world_.Violate("{} is taken to be at {}, which was never published", part.name(),
                          Name(at));
  }
  if (part.Equals(*version)) return;
  world_.Violate("{} is taken to be at {}, and its memory is not", part.name(), Name(at));
}

void Refinement::CheckCommit(const EngineUnit& unit, const Unit& model, const Engine& part,
                             const std::optional<VersionAt>& from, const VersionAt& to) {
  if (from == to) return;  // nothing was written, or only what had drifted
  if (from.has_value() && Before(to, *from)) {
    return world_.Violate("{} is taken back from {} to {}", part.name(), Name(*from), Name(to));
  }
  if (unit.parts.size() == 1 || model.decided.contains(Key(to))) return;
  world_.Violate("{} commits {}, which its group has not decided", part.name(), Name(to));
}

void Refinement::CheckRelease(const EngineUnit& unit, const Unit& model, const Engine& part) {
  const VersionAt& to = part.claimed();
  if (model.newest.has_value() && Before(to, *model.newest)) {
    return world_.Violate("{} is released with {}, after a part of {} was with {}", part.name(),
                          Name(to), unit.name, Name(*model.newest));
  }
  for (const auto& [other, at] : model.at) {
    if (model.writing.contains(other) || !Before(at, to)) continue;
    return world_.Violate("{} is released with {}, while {} is at {}", part.name(), Name(to),
                          other->name(), Name(at));
  }
}

void Refinement::CheckSenders() {
  for (const auto& receiver : world_.receivers) {
    for (const Deployment& deployment : world_.deployments) {
      for (const auto& sender : deployment.senders) {
        const AnnouncerState& hub = sender->hub();
        const auto known = hub.receivers().find(receiver->name());
        if (known == hub.receivers().end() || !known->second.committed.has_value()) continue;
        const VersionAt at{.stream = *hub.stream(), .version = *known->second.committed};
        if (receiver->HasCommitted(at)) continue;
        return world_.Violate("{} counts {} as committed by {}, which did not", sender->name(),
                              Name(at), receiver->name());
      }
    }
  }
}

}  // namespace dws::sim
