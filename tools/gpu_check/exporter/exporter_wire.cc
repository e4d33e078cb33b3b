#include "tools/gpu_check/exporter/exporter_wire.h"

#include <poll.h>

#include <algorithm>
#include <optional>
#include <string>
#include <utility>

#include "common/base/bytes.h"
#include "common/model/limits.h"
#include "common/service/sockets/descriptor_message.h"

namespace dws::gpu_check {
namespace {

constexpr size_t kPartBytes = 32'768;

// How many packets one message takes, by bytes and by descriptors.
size_t PartsOf(size_t bytes, size_t descriptors) {
  return std::max(CeilDiv(bytes, kPartBytes), CeilDiv(descriptors, limits::kDescriptorsPerMessage));
}

Result<DescriptorMessage> AwaitMessage(const UniqueFd& socket, int timeout_ms) {
  for (;;) {
    pollfd waited = {.fd = socket.get(), .events = POLLIN, .revents = 0};
    if (::poll(&waited, 1, timeout_ms) == 0) {
      return DeadlineExceededError("the other process sent nothing for {} ms", timeout_ms);
    }
    DWS_ASSIGN_OR_RETURN(std::optional<DescriptorMessage> message,
                         ReceiveDescriptorMessage(socket, kPartBytes));
    if (message.has_value()) return *std::move(message);
  }
}

std::string ToHex(const std::string& bytes) {
  std::string hex;
  for (const char byte : bytes) hex += fmt::format("{:02x}", static_cast<unsigned char>(byte));
  return hex;
}

std::string FromHex(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i + 1 < hex.size(); i += 2) {
    bytes.push_back(static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16)));
  }
  return bytes;
}

Json ToJson(const CudaChunkHandle& chunk) {
  return {{"kind", static_cast<int>(chunk.kind)},
          {"size", chunk.size_bytes},
          {"bytes", ToHex(chunk.bytes)},
          {"opens_pool", chunk.opens_pool}};
}

CudaChunkHandle ChunkFrom(const Json& json) {
  return {.kind = static_cast<CudaChunkHandle::Kind>(json["kind"].get<int>()),
          .size_bytes = json["size"],
          .bytes = FromHex(json["bytes"]),
          .opens_pool = json["opens_pool"]};
}

}  // namespace

Status SendJson(const UniqueFd& socket, const JsonMessage& message) {
  std::string text = message.json.dump();
  std::vector<int> descriptors;
  for (const UniqueFd& descriptor : message.descriptors) descriptors.push_back(descriptor.get());
  const size_t parts = PartsOf(text.size(), descriptors.size());
  // Blanks if there are more descriptors than text, because a packet is never empty.
  text.resize(std::max(text.size(), (parts - 1) * kPartBytes + 1), ' ');
  const std::string head = fmt::format("{}", parts);
  DWS_RETURN_IF_ERROR(SendDescriptorMessage(socket, std::as_bytes(std::span(head)), {}));
  for (size_t part = 0; part < parts; ++part) {
    const auto bytes = std::as_bytes(std::span(text)).subspan(part * kPartBytes);
    const size_t first = std::min(part * limits::kDescriptorsPerMessage, descriptors.size());
    const auto rights = std::span<const int>(descriptors).subspan(first);
    DWS_RETURN_IF_ERROR(SendDescriptorMessage(
        socket, bytes.first(std::min(bytes.size(), kPartBytes)),
        rights.first(std::min(rights.size(), limits::kDescriptorsPerMessage))));
  }
  return OkStatus();
}

Result<JsonMessage> ReceiveJson(const UniqueFd& socket, int timeout_ms) {
  const auto text_of = [](const DescriptorMessage& message) {
    return std::string(reinterpret_cast<const char*>(message.payload.data()),
                       message.payload.size());
  };
  DWS_ASSIGN_OR_RETURN(const DescriptorMessage head, AwaitMessage(socket, timeout_ms));
  const size_t parts = std::stoul(text_of(head));
  std::string text;
  JsonMessage received;
  for (size_t part = 0; part < parts; ++part) {
    DWS_ASSIGN_OR_RETURN(DescriptorMessage message, AwaitMessage(socket, timeout_ms));
    text += text_of(message);
    for (UniqueFd& descriptor : message.descriptors) {
      received.descriptors.push_back(std::move(descriptor));
    }
  }
  received.json = Json::parse(text, nullptr, false);
  if (received.json.is_discarded()) return DataLossError("expected JSON, found '{}'", text);
  return received;
}

Json ToJson(const cuda::ExportedMemory& exported) {
  Json regions = Json::array();
  for (const RegionHandle& region : exported.regions) {
    Json chunks = Json::array();
    for (const CudaChunkHandle& chunk : region.cuda->chunks) chunks.push_back(ToJson(chunk));
    regions.push_back({{"size", region.size_bytes},
                       {"uuid", region.cuda->device_uuid},
                       {"chunks", std::move(chunks)}});
  }
  Json places = Json::array();
  for (const auto& place : exported.places) {
    places.push_back({{"region", place.region}, {"offset", place.offset_bytes}});
  }
  return {{"regions", std::move(regions)}, {"places", std::move(places)}};
}

cuda::ExportedMemory ExportedFrom(JsonMessage message) {
  cuda::ExportedMemory exported;
  for (const Json& json : message.json["regions"]) {
    CudaRegionHandle cuda{.device_uuid = json["uuid"], .chunks = {}};
    for (const Json& chunk : json["chunks"]) cuda.chunks.push_back(ChunkFrom(chunk));
    exported.regions.push_back({.size_bytes = json["size"], .cuda = std::move(cuda)});
  }
  for (const Json& place : message.json["places"]) {
    exported.places.push_back({.region = place["region"], .offset_bytes = place["offset"]});
  }
  exported.descriptors = std::move(message.descriptors);
  return exported;
}

}  // namespace dws::gpu_check
