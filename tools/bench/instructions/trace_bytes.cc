// Sizes alone, so that they are the same on every machine.
#include "tools/bench/instructions/trace_bytes.h"

#include <memory>
#include <utility>
#include <vector>

#include "sender_daemon/publish/publish_pipeline.h"
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/trace_walk.h"
#include "tools/bench/instructions/figures.h"

namespace dws::bench {
namespace {

constexpr const char* kViews[] = {"fp8-block128/deepseek", "fp8-channel/vllm", "mxfp8/floor",
                                  "int4-g32/amax7", "int4-g128/amax7"};

using Views = std::vector<std::unique_ptr<ViewSnapshot>>;

// Prints the sizes of what was captured last.
Status PrintStep(const TraceStep& step, const Views& views, ThreadPool& pool) {
  const std::string name = "trace " + step.to;
  SenderSide& sender = step.sender;
  for (const std::unique_ptr<ViewSnapshot>& view : views) {
    const RankLayout& layout = view->state()->layout();
    CapturedVersion captured =
        view->CaptureVersion(sender.captured().version, &sender.captured(), pool);
    const RetainedVersionPtr sealed =
        Seal({.state = view->state(), .captured = std::move(captured)});
    PrintBytes(fmt::format("{} view {}", name, layout.view()),
               {.elements = layout.element_count(), .changed = sealed->nnz}, sealed->object.size());
  }
  const RetainedVersionPtr sealed = sender.Seal();
  const Amount amount{.elements = step.placement.layout.element_count(), .changed = sealed->nnz};
  const std::pair<const char*, const std::vector<std::byte>*> objects[] = {
      {"fast", &sealed->object}, {"wan", &SmallestObject(*sealed)}};
  for (const auto& [profile, object] : objects) {
    DWS_RETURN_IF_ERROR(CheckObject(step.placement, *object, step.before, sender.weights(), pool));
    PrintBytes(fmt::format("{} {}", name, profile), amount, object->size());
  }
  return OkStatus();
}

}  // namespace

Status PrintTraceBytes(const std::string& directory) {
  ThreadPool pool(0);
  Views views;
  const auto first = [&](SenderSide& sender) -> Status {
    for (const char* name : kViews) {
      DWS_ASSIGN_OR_RETURN(views.emplace_back(), sender.Follow(name, pool));
    }
    return OkStatus();
  };
  const auto each = [&](const TraceStep& step) { return PrintStep(step, views, pool); };
  return WalkTrace(directory, DeltaProfile::kWan, pool, first, each).status();
}

}  // namespace dws::bench
