// The results of each stage are checked outside it: only the functions that the daemons call are
// counted.
#include "tools/bench/instructions/stages.h"

#include <algorithm>
#include <cstring>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/base/check.h"
#include "common/delta/bits/ordinal.h"
#include "common/delta/decoder.h"
#include "common/delta/encoder.h"
#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/views/view_snapshot.h"
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/sender_side.h"
#include "tools/bench/instructions/figures.h"
#include "tools/bench/measure/synthetic.h"

namespace dws::bench {
namespace {

constexpr uint64_t kColumns = 2048;
constexpr DType kDType = DType::kBF16;
constexpr DeltaLogLimits kLogLimits{.bytes_max = uint64_t{1} << 40, .versions_max = 1000};
constexpr const char* kView = "fp8-block128/deepseek";

// Two versions of the weights, and what a sender and its stages need to know of them.
struct Scene {
  Workload workload;
  std::vector<std::byte> before;
  std::vector<std::byte> after;
  Amount amount;

  const Placement& placement() const { return workload.placement(); }
};

// About 1 % of the elements change, small ones eight times as often as large ones: as in training,
// and without it class-split blocks would not be smaller.
Versions MakeSparse(uint64_t elements) {
  Versions versions = MakeBf16(elements, 0.016);
  for (uint64_t i = 0; i < elements; ++i) {
    const auto bits = LoadLe<uint16_t>(versions.before.data() + i * 2);
    const bool is_large = (bits & 0x7FFF) >= 0x3D00;  // 2^-5
    if (is_large && i % 8 != 0) StoreLe(versions.after.data() + i * 2, bits);
  }
  return versions;
}

// Every element changes, by up to seven steps.
Versions MakeDense(uint64_t elements) {
  Versions versions = MakeBf16(elements, 0.01);
  for (uint64_t i = 0; i < elements; ++i) {
    const auto bits = LoadLe<uint16_t>(versions.before.data() + i * 2);
    const uint64_t random = i * 0x9E37'79B9'7F4A'7C15 >> 40;  // Fibonacci hashing
    const auto size = static_cast<uint16_t>(1 + random % 7);
    const uint16_t ordinal = ToOrdinal(bits, Mapping::kFloat);
    const auto next =
        static_cast<uint16_t>((random & 0x8000) != 0 ? ordinal + size : ordinal - size);
    StoreLe(versions.after.data() + i * 2, FromOrdinal(next, Mapping::kFloat));
  }
  return versions;
}

Result<Scene> MakeScene(Versions versions) {
  const uint64_t elements = versions.before.size() / ElementBytes(kDType);
  std::vector<TensorPair> tensors;
  tensors.push_back(
      {.spec = {.name = "weight", .dtype = kDType, .shape = {elements / kColumns, kColumns}},
       .before = versions.before,
       .after = versions.after});
  DWS_ASSIGN_OR_RETURN(Workload workload, Workload::Tile(std::move(tensors), 0));
  const Amount amount{.elements = elements, .changed = workload.changed_elements()};
  return Scene{.workload = std::move(workload),
               .before = std::move(versions.before),
               .after = std::move(versions.after),
               .amount = amount};
}

void Load(const std::vector<std::byte>& version, MutableByteSpan weights) {
  DWS_CHECK(version.size() == weights.size());
  std::memcpy(weights.data(), version.data(), version.size());
}

// A sender that has captured and sealed the first version, and holds the second.
Result<std::unique_ptr<SenderSide>> SenderWithSecond(const Scene& scene, ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(auto sender, SenderSide::Create(scene.placement()));
  Load(scene.before, sender->weights());
  sender->Capture(pool);
  sender->Seal();
  Load(scene.after, sender->weights());
  return sender;
}

// The block codec alone. `blocks`: what the change from `before` was encoded as; `tables` where
// that is class-split.
void CountCodec(const std::string& name, const Scene& scene, const RankLayout& layout,
                const CapturedVersion& captured, bool other) {
  const std::vector<EncodedBlock>& blocks = captured.blocks;
  const ClassTable* table = other ? &captured.class_tables[0].value() : nullptr;
  const RankLayout::SliceEntry& slice = layout.slices()[0];
  const uint32_t elements = limits::kBlockElements;
  DWS_CHECK(layout.slices().size() == 1 && slice.elements == uint64_t{elements} * slice.blocks);
  const auto before = [&](size_t b) {
    const size_t size_bytes = size_t{limits::kBlockElements} * ElementBytes(kDType);
    return ByteSpan(scene.before).subspan(b * size_bytes, size_bytes);
  };
  std::vector<DecodedBlock> decoded(blocks.size());
  CountStage("decode " + name, scene.amount, [&] {
    for (size_t b = 0; b < blocks.size(); ++b) {
      const EncodedBlock& block = other ? captured.other_blocks[b] : blocks[b];
      DWS_CHECK(DecodeBlock(kDType, elements, ViewOf(block), decoded[b],
                            {.classes = table, .before = before(b)})
                    .ok());
    }
  });
  std::vector<BlockChanges> changes;
  for (DecodedBlock& block : decoded) {
    DWS_CHECK(block.kind == DecodedBlock::Kind::kSteps);
    changes.push_back({.positions = std::move(block.positions), .steps = std::move(block.values)});
  }
  EncodeScratch scratch;
  std::vector<EncodedBlock> again(blocks.size());
  CountStage("encode " + name, scene.amount, [&] {
    for (size_t b = 0; b < blocks.size(); ++b) {
      again[b] = EncodeSteps(kDType, changes[b], elements, scratch);
      if (table == nullptr) continue;
      again[b] = EncodeClassSplit(kDType, changes[b], again[b], before(b), *table, scratch).value();
    }
  });
  for (size_t b = 0; b < blocks.size(); ++b) {
    DWS_CHECK(again[b].payload == (other ? captured.other_blocks[b] : blocks[b]).payload);
  }
}

// Staging and commit of `object`, which leads from the first version to the second.
Status CountReceiver(const std::string& name, const Scene& scene, ByteSpan object,
                     ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(const auto receiver, ReceiverSide::Create(scene.placement()));
  Load(scene.before, receiver->weights());
  DWS_RETURN_IF_ERROR(receiver->Receive(object, pool));
  Result<StagedDelta> staged = InternalError("not staged");
  CountStage("stage " + name, scene.amount, [&] { staged = receiver->Stage(pool); });
  DWS_RETURN_IF_ERROR(staged.status());
  CountStage("commit " + name, scene.amount, [&] { receiver->Commit(*staged, pool); });
  if (std::memcmp(receiver->weights().data(), scene.after.data(), scene.after.size()) != 0) {
    return DataLossError("the engine is not at the trainer's version after 'commit {}'", name);
  }
  return OkStatus();
}

Status CountSparse(const Scene& scene, ThreadPool& pool) {
  // What happens once in a process, as protobuf's reading of its own descriptors, is no stage's.
  DWS_ASSIGN_OR_RETURN(const auto unused, SenderWithSecond(scene, pool));
  unused->Capture(pool);
  unused->Seal();

  DWS_ASSIGN_OR_RETURN(const auto first, SenderSide::Create(scene.placement()));
  Load(scene.before, first->weights());
  CountStage("capture first", {.elements = scene.amount.elements}, [&] { first->Capture(pool); });

  DWS_ASSIGN_OR_RETURN(const auto sender, SenderWithSecond(scene, pool));
  CountStage("capture fast", scene.amount, [&] { sender->Capture(pool); });
  CountCodec("fast", scene, scene.placement().layout, sender->captured(), false);
  RetainedVersionPtr sealed;
  CountStage("seal fast", scene.amount, [&] { sealed = sender->Seal(); });
  PrintBytes("synthetic fast", scene.amount, sealed->object.size());
  DWS_RETURN_IF_ERROR(CountReceiver("fast", scene, sealed->object, pool));

  // Class tables are made from earlier versions.
  for (const std::vector<std::byte>* version : {&scene.before, &scene.after, &scene.before}) {
    Load(*version, sender->weights());
    sender->Capture(pool, DeltaProfile::kWan);
    sender->Seal();
  }
  Load(scene.after, sender->weights());
  CountStage("capture wan", scene.amount, [&] { sender->Capture(pool, DeltaProfile::kWan); });
  CountCodec("wan", scene, scene.placement().layout, sender->captured(), true);
  CountStage("seal wan", scene.amount, [&] { sealed = sender->Seal(); });
  PrintBytes("synthetic wan", scene.amount, sealed->other_object.size());
  DWS_RETURN_IF_ERROR(CountReceiver("wan", scene, sealed->other_object, pool));

  DWS_ASSIGN_OR_RETURN(const auto receiver, ReceiverSide::Create(scene.placement()));
  Load(scene.after, receiver->weights());
  Result<std::vector<SliceState>> states = InternalError("not computed");
  CountStage("digest", {.elements = scene.amount.elements},
             [&] { states = receiver->engine().ComputeStates(TrainerRank(0), pool); });
  DWS_RETURN_IF_ERROR(states.status());
  return OkStatus();
}

Status CountDense(const Scene& scene, ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderWithSecond(scene, pool));
  CountStage("capture dense", scene.amount, [&] { sender->Capture(pool); });
  CountCodec("dense", scene, scene.placement().layout, sender->captured(), false);
  const RetainedVersionPtr dense = sender->Seal();
  PrintBytes("dense fast", scene.amount, dense->object.size());
  DWS_RETURN_IF_ERROR(CountReceiver("dense", scene, dense->object, pool));

  DWS_ASSIGN_OR_RETURN(const auto direct, SenderWithSecond(scene, pool));
  CountStage("capture direct", scene.amount, [&] { direct->Capture(pool, DeltaProfile::kDirect); });
  const RetainedVersionPtr sealed = direct->Seal();
  PrintBytes("dense direct", scene.amount, sealed->other_object.size());
  return CountReceiver("direct", scene, sealed->other_object, pool);
}

Status CountView(const Scene& scene, ThreadPool& pool) {
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderWithSecond(scene, pool));
  DWS_ASSIGN_OR_RETURN(const auto view, ViewSnapshot::Create(kView, sender->state(), kLogLimits));
  CountStage("first capture of a view", {.elements = scene.amount.elements},
             [&] { view->CaptureVersion(*sender->state()->snapshot->version(), nullptr, pool); });
  sender->Capture(pool);
  CapturedVersion captured;
  CountStage("capture of a view", scene.amount, [&] {
    captured = view->CaptureVersion(sender->captured().version, &sender->captured(), pool);
  });
  const RetainedVersionPtr sealed = Seal({.state = view->state(), .captured = std::move(captured)});
  PrintBytes("synthetic view", {.elements = scene.amount.elements, .changed = sealed->nnz},
             sealed->object.size());
  return OkStatus();
}

}  // namespace

Status CountSparseStages(uint64_t size_bytes) {
  ThreadPool pool(0);
  DWS_ASSIGN_OR_RETURN(const Scene scene, MakeScene(MakeSparse(size_bytes / ElementBytes(kDType))));
  DWS_RETURN_IF_ERROR(CountSparse(scene, pool));
  return CountView(scene, pool);
}

Status CountDenseStages(uint64_t size_bytes) {
  ThreadPool pool(0);
  DWS_ASSIGN_OR_RETURN(const Scene scene, MakeScene(MakeDense(size_bytes / ElementBytes(kDType))));
  return CountDense(scene, pool);
}

}  // namespace dws::bench
