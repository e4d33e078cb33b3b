// The commit, as receiver_daemon/commit/commit_pipeline: protocol.md §4, steps 3 to 8. Each step is
// an event of its own, so that anything may crash between any two, and between two slices.
#include <utility>

#include "tests/simulation/receiver.h"
#include "tests/simulation/sender.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {
constexpr Time kWriteTime = 20;  // of one trainer rank's part
}  // namespace

void Receiver::Begin(PreparedPtr prepared, bool release,
                     std::function<void(const Status&, bool)> done) {
  const auto commit = std::make_shared<Commit>(Commit{.prepared = prepared,
                                                      .state = CommitState(*generation_),
                                                      .generation = *generation_,
                                                      .attachment = attachment_,
                                                      .before = live_.at,
                                                      .release = release,
                                                      .done = std::move(done)});
  uint64_t staged = 0;
  for (const PreparedRank& rank : prepared->ranks) staged += rank.staged.size();
  if (staged > world().staged_words_max) {
    world().Violate("{} has staged {} words, its cap is {}", name(), staged,
                    world().staged_words_max);
  }
  const VersionAt at = prepared->target.at();
  if (release) {
    Tell(prepared->target, [at](Sender& sender, ConnectionId link, Nonce nonce) {
      sender.OnStaged(link, nonce, at);
    });
  }
  disk_.Append(CommitIntent{.stream = at.stream,
                            .base = VersionIn(live_.at, at.stream),
                            .target = at.version,
                            .generation = *generation_},
               [this, commit](const Status& status) {
                 if (!status.ok()) return End(commit, status);
                 commit->state.OnIntentRecorded();
                 Pause(commit);
               });
}

void Receiver::Pause(const CommitPtr& commit) {
  const auto answer = std::make_shared<Status>();
  const auto go_on = Alive([this, commit, answer] {
    Status paused = *answer;
    const bool ignores = world().options.mutation == Mutation::kIgnoreGeneration;
    if (ignores && attached_.has_value()) {
      paused = commit->state.OnPaused(commit->generation);
      commit->attachment = engine_.attachment();
    } else if (paused.ok()) {
      paused = commit->state.OnPaused(attached_);
    }
    if (!paused.ok()) return End(commit, paused);
    commit->state.OnWriteBegin();
    WriteNext(commit);
  });
  engine_.Pause(commit->attachment, [answer, go_on](const Status& status) {
    *answer = status;
    go_on();
  });
}

void Receiver::WriteNext(const CommitPtr& commit) {
  const Prepared& prepared = *commit->prepared;
  if (commit->next_rank == prepared.ranks.size()) {
    if (!CheckWritten(prepared)) {
      return End(commit, DataLossError("memory is not what was written"));
    }
    commit->state.OnWritten();
    return End(commit, OkStatus());
  }
  const auto r = static_cast<uint32_t>(commit->next_rank++);
  const PreparedRank& rank = prepared.ranks[r];
  for (const auto& [slice, word, value] : rank.staged) {
    engine_.Write(commit->attachment, r, slice, word, value);
  }
  for (const auto& [slice, word, step] : rank.in_place) {
    engine_.Write(commit->attachment, r, slice, word, engine_.Read(r, slice)[word] + step);
  }
  for (const auto& [slice, words] : rank.full) {
    for (uint32_t w = 0; w < kWords; ++w) {
      engine_.Write(commit->attachment, r, slice.value(), w, words[w]);
    }
  }
  // A disk that lost what was spooled.
  if (world().faulty && world().random.Chance(10)) {
    return End(commit, DataLossError("the spool lost bytes"));
  }
  After(kWriteTime, [this, commit] { WriteNext(commit); });
}

// What was not staged is read back.
bool Receiver::CheckWritten(const Prepared& prepared) const {
  for (uint32_t r = 0; r < prepared.ranks.size(); ++r) {
    const PreparedRank& rank = prepared.ranks[r];
    const auto good = [&](uint32_t slice) {
      return DigestOf(slice, engine_.Read(r, slice)) == rank.published.slices[slice];
    };
    for (const auto& word : rank.in_place) {
      if (!good(word.slice)) return false;
    }
    const bool skips = world().options.mutation == Mutation::kSkipFullCheck;
    for (const auto& [slice, words] : rank.full) {
      if (!skips && !good(slice.value())) return false;
    }
  }
  return true;
}

void Receiver::End(const CommitPtr& commit, const Status& status) {
  const VersionAt at = commit->prepared->target.at();
  if (status.ok()) {
    Reach(*commit->prepared);
    ++world().commits;
    if (commit->release) engine_.Resume(commit->attachment, at);
    commit->state.OnReleased();
    return Record(commit);
  }
  bool untouched = true;
  switch (commit->state.OnError()) {
    case CommitState::AfterError::kNothing:
      break;
    case CommitState::AfterError::kAbandonAndResume:
      world().See("a commit is abandoned");
      disk_.Append(CommitAbandoned{.stream = at.stream, .target = at.version},
                   [](const Status&) {});
      if (commit->release && live_.proved()) engine_.Resume(commit->attachment, *live_.at);
      break;
    case CommitState::AfterError::kStayPaused:
      untouched = false;
      world().See("a commit is torn");
      if (world().options.mutation == Mutation::kResumeTorn && live_.at.has_value()) {
        engine_.Resume(commit->attachment, *live_.at);
      }
      ForgetLive();
      break;
  }
  commit->done(status, untouched);
}

// The record comes last: it says nothing that attaching would not find out.
void Receiver::Record(const CommitPtr& commit) {
  const VersionAt at = commit->prepared->target.at();
  disk_.Append(VersionCommitted{.stream = at.stream, .version = at.version}, [this, commit,
                                                                              at](const Status&) {
    Tell(commit->prepared->target, [this, at](Sender& sender, ConnectionId link, Nonce) {
      sender.OnCommitted(link, at, *this);
    });
    commit->done(OkStatus(), false);
  });
}

}  // namespace dws::sim
