// Each request is checked separately, so that a request that cannot be carried out does not spoil
// the others.
#include "sender_daemon/trainer/refinement_queue.h"

#include <optional>
#include <utility>

#include "common/base/log/log.h"
#include "common/model/limits.h"
#include "sender_daemon/trainer/trainer_session.h"

namespace dws {

void RefinementQueue::Ask(RefineRequest request) {
  bool taken = false;
  {
    MutexLock lock(mutex_);
    if (requests_.size() < limits::kReceiversMax) {
      if (!posted_) posted_ = executor_.Post([this] { Run(); });
      taken = posted_;
      if (taken) requests_.push_back(std::move(request));
    }
  }
  if (!taken) request.answer(ResourceExhaustedError("the sender is busy with its trainer's calls"));
}

void RefinementQueue::Run() {
  std::vector<RefineRequest> requests;
  {
    MutexLock lock(mutex_);
    posted_ = false;
    requests.swap(requests_);
  }
  // The requests that can be carried out, and what they ask for together.
  std::vector<const RefineRequest*> fit;
  CutWishes all;
  const RefineRequest* last = nullptr;
  Status checked;
  for (const RefineRequest& request : requests) {
    const bool same =
        last != nullptr && last->stream == request.stream && last->cuts == request.cuts;
    if (!same) checked = session_.CheckRefine(request.stream, request.cuts);
    last = &request;
    if (request.probe || !checked.ok()) {
      request.answer(checked);
      continue;
    }
    if (!fit.empty() && fit.front()->stream != request.stream) continue;  // of an earlier stream
    CutWishes together = all;
    if (Merge(together, request.cuts) && !fit.empty()) {  // the first was checked alone
      const Status fits = session_.CheckRefine(request.stream, together);
      if (!fits.ok()) {
        request.answer(fits);
        continue;
      }
    }
    all = std::move(together);
    fit.push_back(&request);
  }
  if (fit.empty()) return;
  const Status refined = session_.Refine(fit.front()->stream, all);
  if (refined.ok()) return;
  LogWarning("layout_not_refined", {{"reason", Message(refined)}});
  for (const RefineRequest* const request : fit) request->answer(refined);
}

}  // namespace dws
