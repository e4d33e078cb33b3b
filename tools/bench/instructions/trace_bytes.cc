// Steps are captured in order, as in production: what a sender has learnt from earlier ones makes the
// later deltas smaller.
#include "tools/bench/instructions/trace_bytes.h"

#include <algorithm>
#include <filesystem>
#include <memory>
#include <utility>
#include <vector>

#include "sender_daemon/publish/publish_pipeline.h"
#include "sender_daemon/views/view_snapshot.h"
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/sender_side.h"
#include "tools/bench/instructions/figures.h"
#include "tools/bench/measure/trace.h"

namespace dws::bench {
namespace {

constexpr DeltaLogLimits kLogLimits{.bytes_max = uint64_t{1} << 40, .versions_max = 1000};
constexpr const char* kViews[] = {"fp8-block128/deepseek", "fp8-channel/vllm", "mxfp8/floor",
                                  "int4-g32/amax7", "int4-g128/amax7"};

using Views = std::vector<std::unique_ptr<ViewSnapshot>>;

Result<Views> FollowAll(const RankStatePtr& trainer, ThreadPool& pool) {
  Views views;
  for (const char* name : kViews) {
    DWS_ASSIGN_OR_RETURN(auto view, ViewSnapshot::Create(name, trainer, kLogLimits));
    view->CaptureVersion(*trainer->snapshot->version(), nullptr, pool);
    views.push_back(std::move(view));
  }
  return views;
}

// Prints the sizes of what `sender` captured last. `before`: the weights of the version before.
Status PrintStep(const std::string& step, const Placement& placement, ByteSpan before,
                 const Views& views, SenderSide& sender, ThreadPool& pool) {
  for (size_t v = 0; v < views.size(); ++v) {
    ViewSnapshot& view = *views[v];
    CapturedVersion captured =
        view.CaptureVersion(sender.captured().version, &sender.captured(), pool);
    const RetainedVersionPtr sealed =
        Seal({.state = view.state(), .captured = std::move(captured)});
    PrintBytes(fmt::format("{} view {}", step, kViews[v]),
               {.elements = view.state()->layout().element_count(), .changed = sealed->nnz},
               sealed->object.size());
  }
  const RetainedVersionPtr sealed = sender.Seal();
  const Amount amount{.elements = placement.layout.element_count(), .changed = sealed->nnz};
  const std::pair<const char*, const std::vector<std::byte>*> objects[] = {
      {"fast", &sealed->object}, {"wan", &SmallestObject(*sealed)}};
  for (const auto& [profile, object] : objects) {
    DWS_RETURN_IF_ERROR(CheckObject(placement, *object, before, sender.weights(), pool));
    PrintBytes(fmt::format("{} {}", step, profile), amount, object->size());
  }
  return OkStatus();
}

}  // namespace

Status PrintTraceBytes(const std::string& directory) {
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> files, TraceFiles(directory));
  DWS_ASSIGN_OR_RETURN(std::vector<TensorPair> tensors, ReadFirstStep(files[0]));
  std::vector<TensorSpec> specs;
  for (const TensorPair& tensor : tensors) specs.push_back(tensor.spec);
  DWS_ASSIGN_OR_RETURN(const Placement placement, PlaceTensors(specs));
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(placement));
  ThreadPool pool(0);
  Views views;
  for (size_t f = 0; f < files.size(); ++f) {
    if (f > 0) DWS_RETURN_IF_ERROR(ReadNextStep(files[f], tensors));
    const std::vector<std::byte> before(sender->weights().begin(), sender->weights().end());
    for (size_t i = 0; i < specs.size(); ++i) {
      std::copy(tensors[i].after.begin(), tensors[i].after.end(),
                placement.Tensor(sender->weights(), i).begin());
    }
    sender->Capture(pool, DeltaProfile::kWan);
    if (f == 0) {
      DWS_ASSIGN_OR_RETURN(views, FollowAll(sender->state(), pool));
      continue;
    }
    const std::string step = "trace " + std::filesystem::path(files[f]).stem().string();
    DWS_RETURN_IF_ERROR(PrintStep(step, placement, before, views, *sender, pool));
  }
  return OkStatus();
}

}  // namespace dws::bench
