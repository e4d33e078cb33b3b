// A daemon's status for people, in 80 columns.
#pragma once

#include <string>

#include "proto/admin.pb.h"

namespace dws::dwsctl {

// Pure. Names from outside are cut and cleaned of control characters; of many retained versions the
// newest are shown and the others counted.
std::string FormatStatus(const v1::StatusReply& status);

}  // namespace dws::dwsctl
