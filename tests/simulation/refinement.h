// Refinement: after each event the state of the real state machines is mapped to the model below.
// It must be a state of the model, and the step to it must be one of the model's steps. So a wrong
// step is found when it is made, and not when an engine generates with what it has led to.
//
// The model. A part of an engine (a rank of a commit group, or a whole engine) is at one published
// version, which its memory has byte for byte, or at none; while it is written it is at none. A
// part that runs was released with a version, and is at that version or at none. Its steps:
//
//   prove    none -> v: its memory was read, and is the published version v
//   commit   v, or none, -> w: w is newer; in a group its leader has decided w
//   lose     v -> none: a crash, a torn commit
//   release  with v: no part of the engine is at an older version, and none was ever released with
//            a newer one. So the ranks of a group pass one decided version after the other.
//   pause    it runs no longer
//
// A receiver acknowledges what its engine is at. A sender counts a version as committed by a
// receiver only if that has committed it; so if it counts all, each of them has.
//
// The map: Receiver::believed, Engine::running and claimed, the leader's ledger, Sender::hub.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <utility>

#include "common/sync_state/live_state.h"

namespace dws::sim {

class Engine;
class World;
struct EngineUnit;

// Lifecycle: of the world.
class Refinement {
 public:
  explicit Refinement(World& world) : world_(world) {}

  // Checks the step since the last call.
  void Check();

 private:
  struct Unit {
    std::map<const Engine*, VersionAt> at;       // parts that are at a version, or were before
    std::set<const Engine*> writing;             // these, which are written now
    std::map<const Engine*, VersionAt> running;  // released with these
    std::optional<VersionAt> newest;             // that any part was released with
    std::set<std::pair<uint64_t, uint64_t>> decided;
  };
  void CheckUnit(const EngineUnit& unit, Unit& model);
  void CheckMemory(const Engine& part, const VersionAt& at);
  void CheckCommit(const EngineUnit& unit, const Unit& model, const Engine& part,
                   const std::optional<VersionAt>& from, const VersionAt& to);
  void CheckRelease(const EngineUnit& unit, const Unit& model, const Engine& part);
  void CheckSenders();

  World& world_;
  std::map<const EngineUnit*, Unit> units_;
};

}  // namespace dws::sim
