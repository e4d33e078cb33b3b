// Every step of the trace is captured in order, so that the sender has learnt from earlier steps,
// as in production. The last object is then compared with entropy and with every peer, whose own
// bytes must lead to the same weights.
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/trace_walk.h"
#include "tools/bench/codec/wire_bench.h"
#include "tools/bench/measure/entropy.h"
#include "tools/bench/peers/peer.h"

namespace dws::bench {
namespace {

constexpr Bar kEntropyBar = AtMost(1.10);

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

Status BenchPeer(const Peer& peer, const LastObject& last, const std::string& pair,
                 Report& report) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::byte> bytes, peer.encode(last.tensors));
  std::vector<std::vector<std::byte>> state;
  for (const TensorPair& tensor : last.tensors) state.push_back(tensor.before);
  DWS_RETURN_IF_ERROR(Annotate(peer.decode(bytes, last.tensors, state), peer.name));
  for (size_t i = 0; i < state.size(); ++i) {
    if (state[i] == last.tensors[i].after) continue;
    return DataLossError("{}: tensor '{}' is not what was encoded", peer.name,
                         last.tensors[i].spec.name);
  }
  const auto ours = static_cast<double>(SmallestObject(*last.version).size());
  report.Add({.id = peer.id,
              .what = fmt::format("{}; {}", pair, peer.name),
              .ours = ours,
              .reference = static_cast<double>(bytes.size()),
              .ratio = static_cast<double>(bytes.size()) / ours,
              .unit = "bytes",
              .bar = peer.bar});
  return OkStatus();
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
  for (const Peer& peer : AllPeers()) {
    DWS_RETURN_IF_ERROR(BenchPeer(peer, last, pair, report));
  }
  return OkStatus();
}

}  // namespace dws::bench
