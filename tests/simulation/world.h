// One simulated job: trainers, senders, receivers, engines, their faults, and the rules that must
// hold under all faults. Everything follows from one seed.
//
// After every event:
//  a. no engine generates with anything other than exactly the published version of its grant
//  b. no engine goes back: streams and, inside one, versions only rise
//  c. once the faults have stopped every engine generates with the newest version within 20 round
//     trips and the transfer time of a full copy
//  d. what senders retain and receivers stage stays under its cap
//  e. an engine with a commit policy takes a version at a boundary, and is never held too far
//     behind
//  f. what has happened is a step of the model in refinement.h
#pragma once

#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "common/base/wall_clock.h"
#include "tests/simulation/course.h"
#include "tests/simulation/refinement.h"
#include "tests/simulation/weights.h"

namespace dws::sim {

class Engine;
class Receiver;
class Sender;
class Trainer;

// What was published, kept apart from everything that faults can reach.
class Truth {
 public:
  void Capture(const VersionAt& at, uint32_t rank, uint32_t ranks, const RankWeights& weights);
  // By rank; null while some rank has not published the version.
  const std::vector<std::optional<RankWeights>>* Find(const VersionAt& at) const;

 private:
  std::map<std::pair<uint64_t, uint64_t>, std::vector<std::optional<RankWeights>>> versions_;
};

// Streams by incarnation, then versions.
inline bool Before(const VersionAt& a, const VersionAt& b) {
  if (a.stream.incarnation != b.stream.incarnation) {
    return a.stream.incarnation < b.stream.incarnation;
  }
  return a.version < b.version;
}

// A rollout engine: one part for each receiver of its group, or a single part.
struct EngineUnit {
  std::string name;
  std::vector<Engine*> parts;
  std::optional<VersionAt> highest;  // the highest version it has generated with
};

// A trainer and its senders. A newer deployment leaves the older one running.
struct Deployment {
  std::unique_ptr<Trainer> trainer;
  std::vector<std::unique_ptr<Sender>> senders;
};

// The simulated time, for product code.
class SimulatedClock final : public Clock {
 public:
  explicit SimulatedClock(const Events& events) : events_(events) {}
  TimePoint Now() const override { return TimePoint(std::chrono::microseconds(events_.now())); }

 private:
  const Events& events_;
};
class SimulatedWallClock final : public WallClock {
 public:
  explicit SimulatedWallClock(const Events& events) : events_(events) {}
  UnixTime Now() const override { return UnixTime(std::chrono::microseconds(events_.now())); }

 private:
  const Events& events_;
};

class World : public Course {
 public:
  explicit World(const Options& options);
  ~World();

  // Runs to the end. Returns the first violation, or "".
  std::string Run();

  const SimulatedClock clock{events};
  const SimulatedWallClock wall_clock{events};
  Truth truth;

  // Chosen by the seed.
  uint32_t ranks = 1;
  Time period = kRoundTrip;        // of the trainer's steps
  size_t versions_max = 4;         // retained by a sender
  uint64_t staging_bytes_max = 0;  // of a receiver
  bool faulty = true;              // until the faults stop
  uint64_t corrupt_permille = 0;
  // The source that receivers ask before the network.
  enum class Beside : uint8_t { kNone, kFaulty, kDead };
  Beside beside = Beside::kNone;

  std::vector<Deployment> deployments;  // the newest last
  std::vector<size_t> routes;           // by sender address: the deployment at that address
  std::vector<std::unique_ptr<Receiver>> receivers;
  std::vector<std::unique_ptr<Engine>> engines;
  std::vector<EngineUnit> units;

  Sender& Route(uint32_t slot);
  uint64_t NextIncarnation() { return ++last_incarnation_; }

  void Touch() { touched_ = true; }  // some engine's memory or lease has changed
  uint64_t commits = 0;

 private:
  void Build();
  void Deploy(uint32_t site);
  void AddEngine(uint32_t members);
  void Check();
  void CheckUnit(EngineUnit& unit);
  bool Reached(const EngineUnit& unit, const VersionAt& at) const;

  void ScheduleFault();
  void Fault();
  void FaultProcess(uint64_t kind);
  void FaultNetwork(uint64_t kind);
  void StopFaults();
  std::optional<VersionAt> RunUntilNewest(Time end);

  Refinement refinement_{*this};
  uint64_t last_incarnation_ = 0;
  Time stop_at_ = 0;
  bool touched_ = false;
};

}  // namespace dws::sim
