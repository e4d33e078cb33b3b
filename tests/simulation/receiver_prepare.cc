// Fetch, verify and stage, as receiver_daemon/commit/prepare: a delta where it is to be had and
// proves its base, full tensors for the rest. Writes nothing.
#include <algorithm>
#include <utility>

#include "tests/simulation/receiver.h"
#include "tests/simulation/sender.h"
#include "tests/simulation/world.h"

namespace dws::sim {
namespace {

constexpr Time kSliceTime = kRoundTrip / 10;  // to transfer one in full
constexpr Time kAnswerMax = 4 * kRoundTrip;

// A transfer that arrives with a bit flipped.
void Corrupt(World& world, Delta& delta) {
  if (!world.random.Chance(world.corrupt_permille)) return;
  delta.steps[world.random.Below(kSlices)][world.random.Below(kWords)] ^= 4096;
}
void Corrupt(World& world, std::vector<Slice>& slices) {
  if (!world.random.Chance(world.corrupt_permille)) return;
  slices[world.random.Below(slices.size())][world.random.Below(kWords)] ^= 4096;
}
void Corrupt(World&, PublishedState&) {}  // one small message, which gRPC keeps whole

}  // namespace

// Asks the sender at the other end of a link; an answer that does not come is UNAVAILABLE.
template <typename T>
void Receiver::Ask(uint32_t slot,
                   std::function<void(Sender&, std::function<void(Result<T>)>)> question,
                   std::function<void(Result<T>)> answer) {
  const auto answered = std::make_shared<bool>(false);
  const auto once = [answered, answer](Result<T> result) {
    if (!std::exchange(*answered, true)) answer(std::move(result));
  };
  After(kAnswerMax, [once] { once(UnavailableError("no answer")); });
  if (links_[slot] == nullptr) return;
  Process& process = links_[slot]->end(Link::kServer);
  const auto answered_with = std::make_shared<Result<T>>(UnavailableError("no answer"));
  const auto arrive = Alive([once, answered_with] { once(std::move(*answered_with)); });
  const auto reply = [this, &process, answered_with, arrive](Result<T> result) {
    Time transfer = 0;
    if constexpr (std::is_same_v<T, std::vector<Slice>>) {
      if (result.ok()) transfer = result->size() * kSliceTime;
    }
    if (result.ok()) Corrupt(world(), *result);
    *answered_with = std::move(result);
    world().network.Datagram(process, *this, arrive, transfer);
  };
  world().network.Datagram(*this, process, [&process, question, reply] {
    if (process.up()) question(static_cast<Sender&>(process), reply);
  });
}

void Receiver::Prepare(const SyncTarget& target, Way way, std::function<void(PreparedPtr)> done) {
  auto prepared = std::make_shared<Prepared>();
  prepared->target = target;
  prepared->way = way;
  prepared->live = live_;
  prepared->base = DeltaBase(way, live_.at, target.at());
  prepared->ranks.resize(target.ranks.size());
  prepared->open_ranks = target.ranks.size();
  world().Trace("{} prepares {}:{} from {}", name(), target.stream.incarnation,
                target.version.value(), prepared->base.has_value() ? prepared->base->value() : 0);
  for (uint32_t r = 0; r < target.ranks.size(); ++r) {
    PrepareRank(prepared, r, [prepared, done] {
      if (--prepared->open_ranks == 0) done(prepared);
    });
  }
}

void Receiver::PrepareRank(PreparedPtr prepared, uint32_t rank, std::function<void()> done) {
  const Done end = [prepared, done](const Status& status) {
    if (prepared->status.ok()) prepared->status = status;
    done();
  };
  if (!prepared->base.has_value()) return FromDescription(prepared, rank, end);
  const SyncTarget& target = prepared->target;
  Ask<Delta>(
      target.ranks[rank].sender.value(),
      [at = target.at(), base = *prepared->base](Sender& sender, auto reply) {
        reply(sender.Object(at.stream, base, at.version));
      },
      [this, prepared, rank, end](Result<Delta> delta) {
        if (prepared->status.ok() == false) return end(OkStatus());
        Status status = delta.status();
        std::vector<RankSlice> rejected;
        if (status.ok()) status = StageDelta(*prepared, rank, *delta, rejected);
        if (status.ok()) return AddFull(prepared, rank, std::move(rejected), end);
        if (!FallsBackToFull(status)) return end(status);
        Tell(prepared->target,
             [at = prepared->target.at()](Sender& sender, ConnectionId link, Nonce nonce) {
               sender.OnNack(link, nonce, at);
             });
        FromDescription(prepared, rank, end);
      });
}

Status Receiver::StageDelta(Prepared& prepared, uint32_t rank, const Delta& delta,
                            std::vector<RankSlice>& rejected) {
  DWS_RETURN_IF_ERROR(
      CheckManifest(delta.manifest, prepared.target.at(), TrainerRank(rank), *prepared.base));
  PreparedRank& staged = prepared.ranks[rank];
  const LiveState::Rank& live = prepared.live.ranks[rank];
  DWS_ASSIGN_OR_RETURN(staged.published, Follow(live.published, delta.manifest));
  std::vector<PreparedRank::Word> words;
  std::vector<PreparedRank::Word> steps;
  for (const SliceDelta& change : delta.manifest.slices) {
    const uint32_t s = change.slice.value();
    if (!engine_.Holds(rank, s)) continue;
    const Slice& old = engine_.Read(rank, s);
    Digest predicted = live.slices[s].digest;
    const size_t first = words.size();
    for (uint32_t w = 0; w < kWords; ++w) {
      const uint64_t step = delta.steps[s][w];
      if (step == 0) continue;
      const uint64_t number = s * kWords + w;
      predicted += MixWord(number, old[w] + step) - MixWord(number, old[w]);
      words.push_back({.slice = s, .word = w, .value = old[w] + step});
      steps.push_back({.slice = s, .word = w, .value = step});
    }
    const bool skips = world().options.mutation == Mutation::kSkipBaseCheck;
    if (skips || JudgeSlice(live.slices[s], change, predicted) == SliceVerdict::kAdmitted) continue;
    words.resize(first);
    steps.resize(first);
    rejected.push_back(change.slice);
    world().See("a slice of a delta is rejected");
  }
  // What is too much to stage is applied in place, in the pause, and read back.
  (words.size() > world().staged_words_max / world().ranks ? staged.in_place : staged.staged) =
      words.size() > world().staged_words_max / world().ranks ? std::move(steps) : std::move(words);
  if (!staged.in_place.empty()) world().See("a delta is too large to stage");
  if (prepared.live.drifted) {
    for (const RankSlice slice : DriftedUntouched(live, delta.manifest)) rejected.push_back(slice);
    std::sort(rejected.begin(), rejected.end());
  }
  return OkStatus();
}

void Receiver::FromDescription(PreparedPtr prepared, uint32_t rank, Done done) {
  prepared->ranks[rank] = {};
  const SyncTarget& target = prepared->target;
  Ask<PublishedState>(
      target.ranks[rank].sender.value(),
      [at = target.at()](Sender& sender, auto reply) { reply(sender.Describe(at)); },
      [this, prepared, rank, done](Result<PublishedState> described) {
        if (!described.ok()) return done(described.status());
        auto differ = SlicesThatDiffer(prepared->live.ranks[rank].slices, described->slices);
        prepared->ranks[rank].published = *std::move(described);
        if (prepared->way == Way::kDescription && !differ.empty()) {
          // Only whether memory is it: nothing is fetched.
          prepared->ranks[rank].full.resize(differ.size());
          return done(OkStatus());
        }
        AddFull(prepared, rank, std::move(differ), done);
      });
}

void Receiver::AddFull(PreparedPtr prepared, uint32_t rank, std::vector<RankSlice> slices,
                       Done done) {
  if (slices.empty()) return done(OkStatus());
  const SyncTarget& target = prepared->target;
  Ask<std::vector<Slice>>(
      target.ranks[rank].sender.value(),
      [at = target.at(), slices](Sender& sender, auto reply) {
        sender.ReadFull(at, slices, reply);
      },
      [this, prepared, rank, slices, done](Result<std::vector<Slice>> full) {
        if (!full.ok()) return done(full.status());
        PreparedRank& staged = prepared->ranks[rank];
        for (size_t i = 0; i < slices.size(); ++i) {
          const uint32_t s = slices[i].value();
          const bool skips = world().options.mutation == Mutation::kSkipFullCheck;
          if (!skips && DigestOf(s, (*full)[i]) != staged.published.slices[s]) {
            world().See("a full tensor is rejected");
            // Not DATA_LOSS: full tensors were the last resort.
            return done(UnavailableError("full tensors do not verify"));
          }
          staged.full.emplace_back(slices[i], (*full)[i]);
        }
        done(OkStatus());
      });
}

}  // namespace dws::sim
