// What an exporter and whoever started it say to each other: JSON in messages of a unix socket,
// descriptors beside it.
#pragma once

#include <nlohmann/json.hpp>
#include <vector>

#include "common/base/status.h"
#include "common/base/unique_fd.h"
#include "common/memory/cuda/cuda_export.h"

namespace dws::gpu_check {

using Json = nlohmann::ordered_json;

// The exporter's end of the socket, in its process.
inline constexpr int kExporterSocket = 3;

struct JsonMessage {
  Json json;
  std::vector<UniqueFd> descriptors;
};

// UNAVAILABLE: the other side is gone.
Status SendJson(const UniqueFd& socket, const JsonMessage& message);

// The next. CANCELLED: the other side is gone. DEADLINE_EXCEEDED: it says nothing for so long; -1:
// waits for ever. DATA_LOSS: no JSON.
Result<JsonMessage> ReceiveJson(const UniqueFd& socket, int timeout_ms);

// Of everything but the descriptors.
Json ToJson(const cuda::ExportedMemory& exported);
cuda::ExportedMemory ExportedFrom(JsonMessage message);

}  // namespace dws::gpu_check
