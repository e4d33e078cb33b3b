// Places where tests make a daemon fail. They are compiled to nothing unless DWS_FAILPOINTS is
// defined, and released packages do not define it.
//
//   DWS_FAILPOINT("receiver.commit.after_intent");    // in a function that returns Status or
//   Result DWS_KILLPOINT("receiver.commit.inside_scatter");  // anywhere; knows no `error`
//
// Armed by the environment: DWS_FAILPOINT="name:kill" (SIGKILL to this process, as a power cut) or
// "name:error" (the function returns INTERNAL) or "name:hold" (the thread makes the file that
// DWS_FAILPOINT_HOLD names and stays until the file is gone); several are separated by commas.
#pragma once

#include <string_view>

#include "common/base/status.h"

namespace dws {

enum class FailpointAction { kNone, kKill, kError, kHold };

// What `armed` (the environment variable's text) says about `name`. Anything it does not understand
// aborts: a test that arms nothing by a typing error would prove nothing.
FailpointAction FindFailpoint(std::string_view armed, std::string_view name);

// Does it. For the macros below.
Status ReachFailpoint(std::string_view name);

}  // namespace dws

#if defined(DWS_FAILPOINTS)
#define DWS_FAILPOINT(name) DWS_RETURN_IF_ERROR(::dws::ReachFailpoint(name))
#define DWS_KILLPOINT(name) static_cast<void>(::dws::ReachFailpoint(name))
#else
#define DWS_FAILPOINT(name) static_cast<void>(0)
#define DWS_KILLPOINT(name) static_cast<void>(0)
#endif
