// `dwsctl status`: what one daemon says of itself, for people or as JSON.
#pragma once

#include "tools/dwsctl/command.h"

namespace dws::dwsctl {

struct StatusFlags {
  TargetFlags target;
  bool json = false;
};

// Calls the daemon, once.
Outcome RunStatus(const StatusFlags& flags);

}  // namespace dws::dwsctl
