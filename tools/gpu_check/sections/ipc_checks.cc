#include <algorithm>
#include <string>

#include "tools/gpu_check/exporter/exporter.h"
#include "tools/gpu_check/sections/imported_tensors.h"
#include "tools/gpu_check/sections/sections.h"

namespace dws::gpu_check {
namespace {

constexpr uint64_t kMiB = uint64_t{1} << 20;
constexpr uint64_t kFakeBytesMax = 64 * kMiB;  // a fake's memory is the host's

struct IpcCase {
  std::string_view name;
  TensorsAsked asked;
};

constexpr IpcCase kCases[] = {
    {"legacy handle, tensor at an odd offset",
     {.kind = kLegacy, .count = 3, .tensor_bytes = 3 * kMiB + 222, .offset_bytes = 1030}},
    {"legacy handles of small allocations",
     {.kind = kLegacy, .count = 40, .tensor_bytes = 500, .offset_bytes = 2}},
    {"VMM, one chunk",
     {.kind = kChunks, .count = 1, .tensor_bytes = 4 * kMiB, .offset_bytes = 510}},
    {"VMM, a tensor over many chunks",
     {.kind = kChunks,
      .count = 1,
      .tensor_bytes = 37 * kMiB + 6,
      .offset_bytes = kMiB + 2,
      .chunk_bytes = 2 * kMiB}},
    {"explicit pools", {.kind = kPool, .count = 3, .tensor_bytes = kMiB + 10, .offset_bytes = 256}},
    {"5,000 tensors, an allocation each",
     {.kind = kLegacy, .count = 5000, .tensor_bytes = 8192, .offset_bytes = 0}},
    {"512 chunks of one tensor",
     {.kind = kChunks, .count = 1, .tensor_bytes = 1024 * kMiB, .chunk_bytes = 2 * kMiB}},
};

Status CheckCase(BenchDevice& device, const TensorsAsked& asked, const std::string& visible = "") {
  DWS_ASSIGN_OR_RETURN(const auto exporter, Exporter::Start(device.device->uuid(), visible));
  DWS_RETURN_IF_ERROR(exporter->Allocate(asked));
  DWS_ASSIGN_OR_RETURN(const ImportedTensors tensors, ImportedTensors::Import(device, *exporter));
  return CheckTensors(device, *exporter, tensors, asked.tensor_bytes);
}

// For memory that cannot be handed over, the exporting side has to give the reason and the remedy.
Status CheckDefaultPool(BenchDevice& device) {
  DWS_ASSIGN_OR_RETURN(const auto exporter, Exporter::Start(device.device->uuid()));
  DWS_RETURN_IF_ERROR(exporter->Allocate({.kind = kDefaultPool, .tensor_bytes = kMiB}));
  const Status status = exporter->Export().status();
  const std::string_view message = Message(status);
  if (message.find("UNIMPLEMENTED") != std::string_view::npos &&
      message.find("default pool") != std::string_view::npos) {
    return OkStatus();
  }
  return InternalError("expected a refusal that names the default pool, found {}",
                       ToString(status));
}

// The owner sees the devices in another order.
Status CheckPermuted(BenchDevice& device, const std::vector<std::string>& uuids) {
  std::string visible;
  for (auto uuid = uuids.rbegin(); uuid != uuids.rend(); ++uuid) {
    visible += (visible.empty() ? "" : ",") + *uuid;
  }
  DWS_ASSIGN_OR_RETURN(const auto exporter, Exporter::Start(device.device->uuid(), visible));
  const bool middle =
      uuids.size() % 2 != 0 && device.device->ordinal() == static_cast<int>(uuids.size() / 2);
  if (exporter->ordinal() == device.device->ordinal() && !middle) {
    return InternalError("CUDA_VISIBLE_DEVICES={} changes no device's number", visible);
  }
  return CheckCase(device, {.kind = kLegacy, .tensor_bytes = kMiB, .offset_bytes = 6}, visible);
}

}  // namespace

Status RunIpc(const Options&, BenchDevice& device, Results& results) {
  DWS_ASSIGN_OR_RETURN(const uint64_t free, device.device->FreeBytes());
  const uint64_t bytes_max = device.fake() ? kFakeBytesMax : free / 2;
  for (const IpcCase& each : kCases) {
    if (each.asked.tensor_bytes * each.asked.count > bytes_max) {
      results.Skipped(each.name, "the device has too little free memory");
      continue;
    }
    results.Checked(each.name, CheckCase(device, each.asked));
  }
  results.Checked("the default pool of cudaMallocAsync is refused", CheckDefaultPool(device));

  constexpr std::string_view kPermuted = "the owner's CUDA_VISIBLE_DEVICES is in another order";
  DWS_ASSIGN_OR_RETURN(const std::vector<std::string> uuids, device.driver->DeviceUuids());
  if (uuids.size() < 2) {
    results.Skipped(kPermuted, "this process sees one device only");
  } else {
    results.Checked(kPermuted, CheckPermuted(device, uuids));
  }
  return OkStatus();
}

}  // namespace dws::gpu_check
