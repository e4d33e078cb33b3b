// A receiver's request to cut the layout finer.
#pragma once

#include <functional>

#include "common/base/status.h"
#include "common/model/refinement.h"
#include "common/model/stream_id.h"

namespace dws {

// What one receiver asks for.
struct RefineRequest {
  StreamId stream;
  CutWishes cuts;
  bool probe = false;  // only whether it could be done
  // Called once, on any thread. For a request that is carried out it reports only errors, because
  // the next Welcome reports success.
  std::function<void(const Status&)> answer;
};

}  // namespace dws
