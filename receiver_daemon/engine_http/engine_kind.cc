#include "receiver_daemon/engine_http/engine_kind.h"

#include <array>
#include <span>

#include "common/base/check.h"

namespace dws {
namespace {

// The first is the default, with it no request uses a cache of the old weights.
constexpr std::array kSglangModes = {PauseMode::kAbort, PauseMode::kRetract, PauseMode::kInPlace};
constexpr std::array kVllmModes = {PauseMode::kKeep, PauseMode::kWait, PauseMode::kAbort};

std::span<const PauseMode> ModesOf(EngineKind kind) {
  switch (kind) {
    case EngineKind::kSglang:
      return kSglangModes;
    case EngineKind::kVllm:
      return kVllmModes;
  }
  return {};
}

}  // namespace

const char* ToString(EngineKind kind) {
  switch (kind) {
    case EngineKind::kSglang:
      return "SGLang";
    case EngineKind::kVllm:
      return "vLLM";
  }
  return "";
}

Result<EngineKind> ParseEngineKind(std::string_view text) {
  if (text == "sglang") return EngineKind::kSglang;
  if (text == "vllm") return EngineKind::kVllm;
  return InvalidArgumentError("expected an engine, sglang or vllm, found \"{}\"", text);
}

const char* ToString(PauseMode mode) {
  switch (mode) {
    case PauseMode::kAbort:
      return "abort";
    case PauseMode::kRetract:
      return "retract";
    case PauseMode::kInPlace:
      return "in_place";
    case PauseMode::kKeep:
      return "keep";
    case PauseMode::kWait:
      return "wait";
  }
  return "";
}

Result<PauseMode> ParsePauseMode(EngineKind kind, std::string_view text) {
  const std::span<const PauseMode> modes = ModesOf(kind);
  DWS_CHECK(!modes.empty());
  if (text.empty()) return modes[0];
  std::string names;
  for (const PauseMode mode : modes) {
    if (text == ToString(mode)) return mode;
    names += fmt::format("{}{}", names.empty() ? "" : ", ", ToString(mode));
  }
  return InvalidArgumentError("expected a way to pause {}, one of {}, found \"{}\"", ToString(kind),
                              names, text);
}

}  // namespace dws
