// One simulated training job: ranks that push gradients, senders that add them, rank 0's sender as
// the leader, their faults, and the rules that must hold under all faults. Everything follows from
// one seed. The states are the product's (common/train_state); the processes around them are
// models.
//
// After every event:
//  a. an owner that is sealed has exactly the sum of all pieces of the attempt, each once, whether
//     they came from their ranks or in the sum of a host
//  b. for each minibatch there is one decision, with the norm and weight of the pushed gradients
//  c. all ranks are at one version or at two that follow each other, and a rank's weights at a
//     version are those that the steps before it lead to
//  d. no rank gathers a version from an owner that has left it
//  e. outboxes and queues of offers stay under their caps
//  f. a leader that cannot go on names a rank or a cause
// Once the faults have stopped, training goes on in time; a rank that is then stopped is waited for
// by name, and nothing is abandoned because of it or of a leader that is stopped; at the end all
// ranks are at one version.
//
// What is not simulated: that rank and sender write the record whole (here it is one step), shared
// memory that is torn by a kill, layouts and units that differ between ranks, two processes that
// act as the sender of one rank at a time, and clocks that jump.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tests/simulation/course.h"
#include "tests/simulation/train/train_truth.h"

namespace dws::sim {

class RankNode;
class SenderNode;

class TrainWorld : public Course {
 public:
  explicit TrainWorld(const Options& options);
  ~TrainWorld();

  // Runs to the end. Returns the first violation, or "".
  std::string Run();

  TrainTruth truth{*this};

  // Chosen by the seed.
  uint32_t ranks = 1;
  uint32_t units = 1;
  uint32_t slots = 1;           // of an outbox
  Time compute = 0;             // of one unit, at most
  std::vector<bool> combiners;  // by rank: its sender combines for its host

  bool faulty = true;  // until the faults stop
  uint64_t damage_permille = 0;
  // Minibatches after this one are not begun.
  uint64_t last_minibatch = UINT64_MAX;
  uint64_t steps = 0;

  std::vector<std::unique_ptr<HostMemory>> memories;
  std::vector<std::unique_ptr<SenderNode>> senders;
  std::vector<std::unique_ptr<RankNode>> rank_nodes;

  TrainingJob job() const;
  TimePoint Now() const { return TimePoint(std::chrono::microseconds(events.now())); }
  RankEpoch NextEpoch() { return RankEpoch(++last_epoch_); }
  // The last version that a rank has published, on its disk.
  std::vector<WeightVersion> durable;
  // Some rank has lost what it needs: all start again from a checkpoint.
  void AskForRestart(std::string_view why);
  bool restarting() const { return restarting_; }
  // A rank or sender of this rank has died.
  void OnDeath(TrainerRank rank);
  void CheckVersions();

 private:
  void StartJob();
  void Check();
  void ScheduleFault();
  void Fault();
  void FaultProcess(uint64_t kind);
  void FaultNetwork(uint64_t kind);
  void KillAtDecision();
  void StopFaults();
  void RestartJob();
  void WatchLeader();
  uint64_t Newest() const;  // minibatch that a rank is in
  bool AllReached(uint64_t minibatch) const;
  bool RunUntilAll(uint64_t minibatch);
  void StopOne();
  void StopLeader();
  bool RunFor(Time duration);

  uint64_t incarnation_ = 0;
  uint64_t last_epoch_ = 0;
  uint64_t restarts_ = 0;
  bool restarting_ = false;
  bool kills_at_decision_ = false;
  Time stop_at_ = 0;
};

}  // namespace dws::sim
