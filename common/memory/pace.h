// Tells whether an engine waits for a piece of work on its memory.
#pragma once

#include <cstdint>

namespace dws {

enum class Pace : uint8_t {
  kBackground,  // no: the engine runs, and may share a device with the work
  kPaused,      // yes: the engine is paused
};

}  // namespace dws
