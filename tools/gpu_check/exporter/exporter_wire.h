// The messages between an exporter and the process that started it: JSON in packets of a unix
// socket, with descriptors.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/ipc/cuda_export.h"

namespace dws::gpu_check {

using Json = nlohmann::ordered_json;

// The exporter's end of the socket, in its process.
inline constexpr int kExporterSocket = 3;

struct JsonMessage {
  Json json;
  std::vector<UniqueFd> descriptors;
};

// UNAVAILABLE: the other side has closed.
Status SendJson(const UniqueFd& socket, const JsonMessage& message);

// The next. CANCELLED: the other side has closed. DEADLINE_EXCEEDED: nothing arrived in that time;
// -1: waits for ever. DATA_LOSS: not JSON.
Result<JsonMessage> ReceiveJson(const UniqueFd& socket, int timeout_ms);

// Converts everything except the descriptors.
Json ToJson(const cuda::ExportedMemory& exported);
cuda::ExportedMemory ExportedFrom(JsonMessage message);

}  // namespace dws::gpu_check
