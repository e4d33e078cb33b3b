#include "tools/gpu_check/exporter/exporter.h"

#include <sys/socket.h>

#include <cerrno>
#include <cstdlib>
#include <utility>

namespace dws::gpu_check {
namespace {

constexpr int kAnswerTimeoutMs = 120'000;

}  // namespace

void FillPattern(MutableByteSpan bytes, uint32_t number) {
  // SplitMix64.
  uint64_t state = uint64_t{number} << 32;
  for (size_t at = 0; at < bytes.size(); at += 8) {
    uint64_t x = state += 0x9E3779B97F4A7C15;
    x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9;
    x = (x ^ (x >> 27)) * 0x94D049BB133111EB;
    x ^= x >> 31;
    for (size_t i = 0; i < 8 && at + i < bytes.size(); ++i) {
      bytes[at + i] = static_cast<std::byte>(x >> (8 * i));
    }
  }
}

Result<std::unique_ptr<Exporter>> Exporter::Start(const std::string& gpu,
                                                  const std::string& visible_devices) {
  int ends[2] = {-1, -1};
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) {
    return ErrnoError(errno, "cannot make a socket pair");
  }
  UniqueFd ours(ends[0]);
  const UniqueFd theirs(ends[1]);
  // Another program that starts an exporter names this one.
  const char* const program = std::getenv(kProgramVariable);
  ChildProcess::Setup setup{.program = program != nullptr ? program : "",
                            .arguments = {"--exporter", "--gpu=" + gpu},
                            .environment = {},
                            .fd = theirs.get(),
                            .as = kExporterSocket};
  if (!visible_devices.empty()) setup.environment = {{"CUDA_VISIBLE_DEVICES", visible_devices}};
  DWS_ASSIGN_OR_RETURN(ChildProcess process, ChildProcess::Start(setup));
  std::unique_ptr<Exporter> exporter(new Exporter(std::move(process), std::move(ours)));
  DWS_ASSIGN_OR_RETURN(const JsonMessage hello, exporter->Answer());
  exporter->ordinal_ = hello.json["ordinal"];
  return exporter;
}

Result<JsonMessage> Exporter::Answer() {
  DWS_ASSIGN_OR_RETURN(JsonMessage answer, ReceiveJson(socket_, kAnswerTimeoutMs));
  if (answer.json.contains("error")) {
    return InternalError("the exporting process reports: {}",
                         answer.json["error"].get<std::string>());
  }
  return answer;
}

Result<JsonMessage> Exporter::Ask(const Json& request) {
  DWS_RETURN_IF_ERROR(SendJson(socket_, {.json = request, .descriptors = {}}));
  return Answer();
}

Status Exporter::Allocate(const TensorsAsked& asked) {
  return Ask({{"do", "allocate"},
              {"kind", std::string(asked.kind)},
              {"count", asked.count},
              {"tensor_bytes", asked.tensor_bytes},
              {"offset_bytes", asked.offset_bytes},
              {"chunk_bytes", asked.chunk_bytes}})
      .status();
}

Result<cuda::ExportedMemory> Exporter::Export() {
  DWS_ASSIGN_OR_RETURN(JsonMessage answer, Ask({{"do", "export"}}));
  return ExportedFrom(std::move(answer));
}

Result<Digest> Exporter::Read(uint32_t tensor) {
  DWS_ASSIGN_OR_RETURN(const JsonMessage answer, Ask({{"do", "read"}, {"tensor", tensor}}));
  return Digest{.lane0 = answer.json["lane0"], .lane1 = answer.json["lane1"]};
}

Status Exporter::BeginLoad(double seconds) {
  DWS_RETURN_IF_ERROR(Ask({{"do", "prepare load"}}).status());
  return SendJson(socket_, {.json = {{"do", "load"}, {"seconds", seconds}}, .descriptors = {}});
}

Result<double> Exporter::EndLoad() {
  DWS_ASSIGN_OR_RETURN(const JsonMessage answer, Answer());
  return answer.json["gigabytes_per_second"].get<double>();
}

}  // namespace dws::gpu_check
