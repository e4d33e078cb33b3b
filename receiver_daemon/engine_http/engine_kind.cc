#include "receiver_daemon/engine_http/engine_kind.h"

#include <array>
#include <span>

#include "common/base/check.h"

namespace dws {
namespace {

// The first is the default: it loses no request, and none uses a cache of the old weights.
constexpr std::array kSglangModes = {PauseMode::kRetract, PauseMode::kAbort, PauseMode::kInPlace};
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

std::string VersionEndpoint(EngineKind kind, const EngineEndpoints& endpoints) {
  static constexpr std::array<const char*, 2> kSglangNames = {"/model_info", "/get_model_info"};
  static constexpr std::array<const char*, 1> kVllmNames = {"/weight_info"};
  const std::span<const char* const> names = kind == EngineKind::kSglang
                                                 ? std::span<const char* const>(kSglangNames)
                                                 : std::span<const char* const>(kVllmNames);
  for (const char* name : names) {
    if (endpoints.contains(name)) return name;
  }
  return "";
}

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
