// Every step of the trace is captured in order, so that the sender has learnt from earlier steps,
// as in production. The last object is then compared with entropy and, if the trace is one that is
// known here, with the bytes of other formats for the same step.
#include <algorithm>
#include <array>

#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/trace_walk.h"
#include "tools/bench/codec/wire_bench.h"
#include "tools/bench/measure/entropy.h"

namespace dws::bench {
namespace {

constexpr Bar kEntropyBar = AtMost(1.10);

// Bytes that other formats took for the last step of the recorded trace of GRPO, whole and as the
// excerpt in tests/data, on 2026-11-28. Encoders and decoders of them were in this tree until then,
// at 58f3dfdb, with zstd 1.5.4: what they wrote was decoded again and led to the same weights.
//   slime's formats: THUDM/slime 624b824a (2026-08-21). B: an entry a tensor. A: positions and
//   values of all tensors in two tensors, gaps of 16 or 32 bits. gaps and masks: buckets of gaps
//   and xor masks, as NeMo-DCR lays them out.
struct Peer {
  const char* id;
  const char* name;
  std::optional<Bar> bar;  // its bytes divided by ours
  uint64_t trace_bytes;
  uint64_t excerpt_bytes;
};
constexpr std::array<Peer, 3> kPeers = {
    Peer{"P2a", "slime format B: xor + zstd-1", AtLeast(2.9), 289'227, 6'627},
    Peer{"P2a", "slime format A: deltas_zstd", AtLeast(3.1), 313'375, 7'045},
    Peer{"P2b", "gaps + xor masks + zstd-1 in buckets", AtLeast(1.9), 186'980, 3'959}};
// What that step is known by.
struct KnownStep {
  uint64_t weights_bytes;
  uint64_t changed;  // elements
  uint64_t Peer::*bytes;
};
constexpr std::array<KnownStep, 2> kKnownSteps = {
    KnownStep{21'238'784, 104'315, &Peer::trace_bytes},
    KnownStep{422'912, 2'079, &Peer::excerpt_bytes}};

struct LastObject {
  RetainedVersionPtr version;
  std::vector<TensorPair> tensors;  // its base and its target
};

Result<LastObject> CaptureTrace(const std::string& directory, std::string& pair) {
  ThreadPool pool(1);
  LastObject last;
  const auto first = [](SenderSide& sender) {
    sender.Seal();  // the first version has no delta
    return OkStatus();
  };
  const auto each = [&](const TraceStep& step) -> Status {
    last.version = step.sender.Seal();
    pair = fmt::format("{} to {}", step.from, step.to);
    const ByteSpan weights = step.sender.weights();
    DWS_RETURN_IF_ERROR(
        CheckObject(step.placement, last.version->object, step.before, weights, pool));
    return CheckObject(step.placement, SmallestObject(*last.version), step.before, weights, pool);
  };
  DWS_ASSIGN_OR_RETURN(last.tensors, WalkTrace(directory, DeltaProfile::kWan, pool, first, each));
  return last;
}

void AddPeers(const LastObject& last, const std::string& pair, Report& report) {
  uint64_t weights_bytes = 0;
  for (const TensorPair& tensor : last.tensors) weights_bytes += tensor.after.size();
  const auto known = std::ranges::find_if(kKnownSteps, [&](const KnownStep& step) {
    return step.weights_bytes == weights_bytes && step.changed == last.version->nnz;
  });
  if (known == kKnownSteps.end()) {
    fmt::print(stderr,
               "P2 skipped: what other formats take is known of the recorded trace alone\n");
    return;
  }
  const auto ours = static_cast<double>(SmallestObject(*last.version).size());
  for (const Peer& peer : kPeers) {
    const auto theirs = static_cast<double>(peer.*(known->bytes));
    report.Add({.id = peer.id,
                .what = fmt::format("{}; {}", pair, peer.name),
                .ours = ours,
                .reference = theirs,
                .ratio = theirs / ours,
                .unit = "bytes",
                .bar = peer.bar});
  }
}

}  // namespace

Status BenchTraceBytes(const Options& options, Report& report) {
  std::string pair;
  DWS_ASSIGN_OR_RETURN(const LastObject last, CaptureTrace(options.trace, pair));
  const auto changed = static_cast<double>(last.version->nnz);
  const double entropy = ClassEntropyBits(last.tensors) / changed;
  const auto add = [&](const char* profile, size_t object_bytes, std::optional<Bar> bar) {
    const double bits = static_cast<double>(object_bytes) * 8 / changed;
    report.Add({.id = "P1b",
                .what = fmt::format("{}; profile {}", pair, profile),
                .ours = bits,
                .reference = entropy,
                .ratio = bits / entropy,
                .unit = "bits/change",
                .bar = bar});
  };
  add("wan", SmallestObject(*last.version).size(), kEntropyBar);
  add("fast", last.version->object.size(), std::nullopt);
  AddPeers(last, pair, report);
  return OkStatus();
}

}  // namespace dws::bench
