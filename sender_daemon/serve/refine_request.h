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
  // Called once, on any thread; of what is carried out only with an error, because the next Welcome
  // tells the rest.
  std::function<void(const Status&)> answer;
};

}  // namespace dws
