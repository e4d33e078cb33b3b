// Who waits for a piece of work on an engine's memory.
#pragma once

#include <cstdint>

namespace dws {

enum class Pace : uint8_t {
  kBackground,  // nobody: the engine generates, and a device is shared with it
  kPaused,      // the engine
};

}  // namespace dws
