#include "common/train_state/minibatch_leader_state.h"

#include <catch2/catch.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "common/train_state/minibatch_member_state.h"
#include "tests/common/train_state/train_samples.h"

namespace dws {
namespace {

using Phase = MinibatchLeaderState::Phase;
using std::chrono::seconds;

constexpr uint32_t kRanks = 3;
constexpr Duration kPeerTimeout = seconds(20);

// A leader and the members of three ranks that hold version 4; messages go by hand.
struct Job {
  explicit Job(uint32_t ranks = kRanks) {
    for (uint32_t r = 0; r < ranks; ++r) {
      members.emplace_back(TrainerRank(r), RankEpoch(1), std::nullopt);
      REQUIRE(members.back().OnRank(WeightVersion(4)).ok());
    }
    StartLeader();
  }

  void StartLeader() {
    leader = std::make_unique<MinibatchLeaderState>(static_cast<uint32_t>(members.size()),
                                                    LeaderTerm(++term), kPeerTimeout, now);
  }
  // Rank r's sender starts again, with or without what it had recorded.
  void Restart(uint32_t r, bool with_record, uint64_t version = 4) {
    const MemberRecord record = members[r].record();
    members[r] = MinibatchMemberState(TrainerRank(r), RankEpoch(++epoch),
                                      with_record ? std::optional(record) : std::nullopt);
    REQUIRE(members[r].OnRank(WeightVersion(version)).ok());
  }
  Status Report(uint32_t r) { return leader->OnReport(TrainerRank(r), *members[r].Report(), now); }
  // What the leader sends now, as "ASB" by rank: asks, Steps, Abandons; '-': nothing. It arrives if
  // `arrives`.
  std::string Send(bool arrives = true) {
    std::string sent(members.size(), '-');
    for (const auto& [rank, message] : leader->Due(now)) {
      sent[rank.value()] = "aSA"[message.what.index()];
      if (arrives) REQUIRE(members[rank.value()].OnDown(message).ok());
    }
    return sent;
  }
  void ReportAll() {
    for (uint32_t r = 0; r < members.size(); ++r) REQUIRE(Report(r).ok());
  }
  // Time passes, in which the leader runs.
  void Wait(Duration duration) {
    for (const TimePoint end = now + duration; now < end;) {
      now += limits::kTrainRepeat;
      leader->Tick(now);
    }
  }
  // All are in the first attempt, and the leader knows.
  void Begin() {
    REQUIRE(Send() == std::string(members.size(), 'a'));
    ReportAll();
    REQUIRE(Send() == std::string(members.size(), 'A'));
    ReportAll();
  }
  void Seal(uint32_t r, double sum_squares = 3, double weight = 8) {
    const AttemptId attempt = *members[r].record().attempt;
    REQUIRE(members[r].OnFinished(attempt).ok());
    REQUIRE(members[r]
                .OnSealed(attempt, {.sum_squares = sum_squares, .weight = weight, .finite = true})
                .ok());
  }
  void SealAll() {
    for (uint32_t r = 0; r < members.size(); ++r) Seal(r);
    ReportAll();
  }
  void Publish(uint32_t r) {
    const MemberRecord& record = members[r].record();
    REQUIRE(members[r]
                .OnPublished(record.attempt->minibatch, WeightVersion(record.version.value() + 1))
                .ok());
  }
  std::vector<uint32_t> Waits(std::string_view what) const {
    const MinibatchLeaderState::Waiting waiting = leader->WaitsFor();
    CHECK(waiting.what == what);
    std::vector<uint32_t> ranks;
    for (const TrainerRank rank : waiting.ranks) ranks.push_back(rank.value());
    return ranks;
  }

  TimePoint now = TimePoint(std::chrono::hours(1));
  uint64_t term = 0;
  uint64_t epoch = 1;
  std::vector<MinibatchMemberState> members;
  std::unique_ptr<MinibatchLeaderState> leader;
};

using Ranks = std::vector<uint32_t>;

}  // namespace

TEST_CASE("a job starts when all ranks have reported the same version", "[train]") {
  Job job;
  CHECK(job.Waits("report") == Ranks{0, 1, 2});
  CHECK(job.Send() == "aaa");
  CHECK(job.Report(0).ok());
  CHECK(job.Report(2).ok());
  CHECK(job.Waits("report") == Ranks{1});
  CHECK(job.Send() == "---");
  CHECK(job.Report(1).ok());
  CHECK(job.leader->phase() == Phase::kOpen);
  CHECK(job.leader->attempt() == At(1, 1));
  CHECK(job.Send() == "AAA");
  CHECK(job.Waits("join") == Ranks{0, 1, 2});
  job.ReportAll();
  CHECK(job.Waits("finish") == Ranks{0, 1, 2});
}

TEST_CASE("Step is decided once when all are sealed with the norm of all shards", "[train]") {
  Job job;
  job.Begin();
  job.Seal(0, 9);
  job.Seal(1, 16);
  job.ReportAll();
  CHECK(job.Waits("finish") == Ranks{2});
  CHECK(job.leader->phase() == Phase::kOpen);
  job.Seal(2, 0);
  job.ReportAll();
  REQUIRE(job.leader->step().has_value());
  CHECK(*job.leader->step() == StepOf(At(1, 1), 5));
  CHECK(job.leader->phase() == Phase::kPublishing);
  CHECK(job.Send() == "SSS");
  job.ReportAll();
  CHECK(*job.leader->step() == StepOf(At(1, 1), 5));
}

TEST_CASE("a shard that is not finite makes the step one to be skipped", "[train]") {
  Job job(2);
  job.Begin();
  job.Seal(0, 9);
  CHECK(job.members[1].OnFinished(At(1, 1)).ok());
  CHECK(job.members[1].OnSealed(At(1, 1), {.weight = 8, .finite = false}).ok());
  job.ReportAll();
  REQUIRE(job.leader->step().has_value());
  CHECK_FALSE(job.leader->step()->finite);
  CHECK(job.leader->step()->norm == 0);
  CHECK(job.Send() == "SS");
  for (auto& member : job.members) CHECK(member.OnSkipped(1).ok());
  job.ReportAll();
  CHECK(job.leader->attempt() == At(2, 1));
  CHECK(job.Waits("finish") == Ranks{0, 1});
}

TEST_CASE("owners with different weights are not stepped", "[train]") {
  Job job(2);
  job.Begin();
  job.Seal(0, 1, 8);
  job.Seal(1, 1, 9);
  job.ReportAll();
  CHECK_FALSE(job.leader->step().has_value());
  REQUIRE(job.leader->last_abandon().has_value());
  CHECK(job.leader->last_abandon()->reason == "owner 1 has a weight of 9, owner 0 of 8");
}

TEST_CASE("a decision is repeated until a report shows that it has arrived", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  CHECK(job.Send(false) == "SSS");
  CHECK(job.Send() == "---");
  job.now += limits::kTrainRepeat;
  CHECK(job.Send() == "SSS");
  CHECK(job.Report(1).ok());
  job.now += limits::kTrainRepeat;
  CHECK(job.Send() == "S-S");
}

TEST_CASE("the next minibatch begins with the first rank that has published", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  CHECK(job.Send() == "SSS");
  CHECK(job.Waits("publish") == Ranks{0, 1, 2});
  job.Publish(1);
  job.ReportAll();
  CHECK(job.leader->attempt() == At(2, 1));
  CHECK(job.Waits("publish") == Ranks{0, 2});
  job.Publish(0);
  job.Publish(2);
  job.ReportAll();
  CHECK(job.Waits("finish") == Ranks{0, 1, 2});
}

TEST_CASE("a rank that lacks the last Step gets it when others are further", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  for (const auto& [rank, message] : job.leader->Due(job.now)) {
    if (rank != TrainerRank(2)) CHECK(job.members[rank.value()].OnDown(message).ok());
  }
  job.Publish(0);
  job.Publish(1);
  job.ReportAll();
  CHECK(job.leader->attempt() == At(2, 1));
  job.now += limits::kTrainRepeat;
  CHECK(job.Send() == "--S");
  CHECK(job.members[2].phase() == MinibatchMemberState::Phase::kStepped);
}

TEST_CASE("a rank or sender that is lost before Step ends the attempt for all", "[train]") {
  const std::vector<std::function<void(Job&)>> losses = {
      [](Job& job) { job.leader->OnDisconnect(TrainerRank(1), job.now); },
      [](Job& job) { job.members[1].OnRankLost(); },
      [](Job& job) { CHECK(job.members[1].AskToAbandon(At(1, 1), "x", TrainerRank(1)).ok()); },
      [](Job& job) { job.Restart(1, true); },
  };
  for (const auto& lose : losses) {
    Job job;
    job.Begin();
    job.Seal(0);
    CHECK(job.Report(0).ok());
    lose(job);
    CHECK(job.Report(1).ok());
    CHECK(job.leader->attempt() == At(1, 2));
    REQUIRE(job.leader->last_abandon().has_value());
    CHECK(job.leader->last_abandon()->rank == TrainerRank(1));
    CHECK(job.Send() == "AAA");
    for (const auto& member : job.members) CHECK(member.record().attempt == At(1, 2));
  }
}

TEST_CASE("nothing that is lost after Step changes the decision", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  job.leader->OnDisconnect(TrainerRank(1), job.now);
  job.members[2].OnRankLost();
  CHECK(job.Report(2).ok());
  job.Wait(2 * kPeerTimeout);
  job.Restart(1, true);
  CHECK(job.Report(1).ok());
  CHECK(job.leader->abandoned() == 1);  // the start
  CHECK(job.Send() == "SSS");
}

TEST_CASE("a slow rank is waited for by name and its attempt is not abandoned", "[train]") {
  Job job;
  job.Begin();
  const TimePoint began = job.now;
  for (int i = 0; i < 100; ++i) {
    job.Wait(seconds(10));
    job.Send();
    job.ReportAll();  // its sender is alive
    if (i == 0) {
      CHECK(job.members[0].OnFinished(At(1, 1)).ok());
      CHECK(job.members[2].OnFinished(At(1, 1)).ok());
    }
  }
  CHECK(job.Waits("finish") == Ranks{1});
  CHECK(job.leader->WaitsFor().since == began);
  CHECK(job.leader->attempt() == At(1, 1));
}

TEST_CASE("a silent sender ends the attempt once and is then waited for", "[train]") {
  Job job;
  job.Begin();
  job.Wait(kPeerTimeout - seconds(1));
  CHECK(job.Report(0).ok());
  CHECK(job.Report(2).ok());
  job.Wait(seconds(1));
  REQUIRE(job.leader->last_abandon().has_value());
  CHECK(job.leader->last_abandon()->reason == "the sender of rank 1 has been silent for 20 s");
  CHECK(job.leader->attempt() == At(1, 2));
  CHECK(job.Send(false) == "AAA");
  job.Wait(2 * kPeerTimeout);
  job.leader->OnDisconnect(TrainerRank(1), job.now);
  CHECK(job.leader->attempt() == At(1, 2));
}

TEST_CASE("a leader that stood still itself takes nobody for silent", "[train]") {
  Job job;
  job.Begin();
  job.now += 3 * kPeerTimeout;
  job.leader->Tick(job.now);
  CHECK(job.leader->attempt() == At(1, 1));
  job.Wait(kPeerTimeout);
  CHECK(job.leader->attempt() == At(1, 2));
}

TEST_CASE("a leader that starts again decides Step if one member knows it", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  const StepDecision step = *job.leader->step();
  for (const auto& [rank, message] : job.leader->Due(job.now)) {
    if (rank == TrainerRank(2)) CHECK(job.members[2].OnDown(message).ok());
  }
  job.StartLeader();
  CHECK(job.Send() == "aaa");
  CHECK(job.Report(0).ok());
  CHECK(job.Report(1).ok());
  CHECK(job.leader->phase() == Phase::kAsking);  // not from a part of the reports
  CHECK(job.Report(2).ok());
  CHECK(job.leader->step() == step);
  CHECK(job.Send() == "SS-");
}

TEST_CASE("a leader that starts again abandons what no member knows to be decided", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  REQUIRE(job.leader->step().has_value());  // and nobody is told
  const std::vector<MinibatchLeaderState::ToMember> late = job.leader->Due(job.now);
  job.StartLeader();
  CHECK(job.Send() == "aaa");
  job.ReportAll();
  CHECK(job.leader->attempt() == At(1, 1, 2));
  CHECK(absl::IsFailedPrecondition(job.members[1].OnDown(late[1].message)));
  CHECK(job.Send() == "AAA");
}

TEST_CASE("a leader that starts again brings those behind to the others", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  for (const auto& [rank, message] : job.leader->Due(job.now)) {
    if (rank != TrainerRank(2)) CHECK(job.members[rank.value()].OnDown(message).ok());
  }
  job.Publish(0);
  job.Publish(1);
  job.StartLeader();
  CHECK(job.Send() == "aaa");
  job.ReportAll();
  CHECK(job.leader->attempt() == At(2, 1, 2));
  CHECK(job.Send() == "AAS");
  job.Publish(2);
  job.ReportAll();
  CHECK(job.members[2].record().attempt == At(2, 1));
  CHECK(job.Send() == "--A");
  CHECK(job.members[2].record().attempt == At(2, 1, 2));
}

TEST_CASE("a report without this term's promise does not count and is asked for", "[train]") {
  Job job;
  job.Begin();
  job.StartLeader();
  job.ReportAll();  // of before
  CHECK(job.leader->phase() == Phase::kAsking);
  CHECK(job.Send() == "aaa");
  job.ReportAll();
  CHECK(job.leader->phase() == Phase::kOpen);
  job.Restart(1, false);
  CHECK(job.Report(1).ok());
  CHECK(job.Send().at(1) == 'a');
}

TEST_CASE("a leader that was replaced is told so", "[train]") {
  Job job;
  job.Begin();
  CHECK(job.members[1].OnDown(Down(TrainAsk(), 9)).ok());
  CHECK(absl::IsFailedPrecondition(job.Report(1)));
}

TEST_CASE("a member without a record joins with another attempt of the same version", "[train]") {
  Job job;
  job.Begin();
  job.Seal(0);
  CHECK(job.Report(0).ok());
  job.Restart(1, false);
  CHECK(job.members[1].OnDown(Down(TrainAsk())).ok());
  CHECK(job.Report(1).ok());
  CHECK(job.leader->attempt() == At(1, 2));
  CHECK(job.Send() == "AAA");
  CHECK(job.members[1].record().attempt == At(1, 2));
}

TEST_CASE("a member that joins late knows the step before for the next leader", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  CHECK(job.Send() == "SSS");
  for (const uint32_t r : {0, 1, 2}) job.Publish(r);
  job.ReportAll();
  job.Restart(1, false, 5);
  CHECK(job.members[1].OnDown(Down(TrainAsk())).ok());
  CHECK(job.Report(1).ok());
  CHECK(job.Send() == "AAA");
  CHECK(job.members[1].record().last_step == StepOf(At(1, 1), 3));
}

TEST_CASE("a member that lost the gradient of a Step breaks the job by name", "[train]") {
  Job job;
  job.Begin();
  job.SealAll();
  CHECK(job.Send() == "SSS");
  job.ReportAll();
  job.Restart(1, false);
  CHECK(job.members[1].OnDown(Down(TrainAsk())).ok());
  CHECK(job.Report(1).ok());
  CHECK(job.leader->phase() == Phase::kBroken);
  REQUIRE(job.leader->broken().has_value());
  CHECK(job.leader->broken()->find("rank 1 comes back with version 4 and without its gradient") ==
        0);
}

TEST_CASE("ranks that start from different versions break the job by name", "[train]") {
  Job job(2);
  job.Restart(1, false, 6);
  CHECK(job.Send(false) == "aa");
  for (auto& member : job.members) {
    const uint64_t epoch = member.Report()->epoch.value();
    CHECK(member.OnDown(Down(TrainAsk(), 1, epoch)).ok());
  }
  job.ReportAll();
  CHECK(job.leader->phase() == Phase::kBroken);
}

TEST_CASE("a late report changes nothing", "[train]") {
  Job job;
  job.Begin();
  const TrainReport old = *job.members[1].Report();
  job.Seal(1);
  CHECK(job.Report(1).ok());
  CHECK(job.leader->OnReport(TrainerRank(1), old, job.now).ok());
  job.Seal(0);
  job.Seal(2);
  CHECK(job.Report(0).ok());
  CHECK(job.Report(2).ok());
  CHECK(job.leader->step().has_value());
}

TEST_CASE("a report that no member sends is refused", "[train]") {
  Job job;
  job.Begin();
  CHECK(absl::IsInvalidArgument(
      job.leader->OnReport(TrainerRank(3), *job.members[0].Report(), job.now)));
  TrainReport wrong = *job.members[0].Report();
  wrong.record.step = StepOf(At(1, 1));
  CHECK(absl::IsInvalidArgument(job.leader->OnReport(TrainerRank(0), wrong, job.now)));
  TrainReport ahead = *job.members[0].Report();
  ++ahead.sequence;
  ahead.record.attempt = At(1, 9);
  CHECK(job.leader->OnReport(TrainerRank(0), ahead, job.now).ok());
  CHECK(job.leader->phase() == Phase::kBroken);  // by name, and decides nothing more
}

}  // namespace dws
