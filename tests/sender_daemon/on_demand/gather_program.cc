// Gathers one unit from senders that run as daemons, and writes its buffer to a file: for tests
// that start and kill daemons. Exits with 1, and the status on stderr, if that fails.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <fstream>
#include <string>
#include <vector>

#include "sender_daemon/on_demand/gather/gather.h"
#include "tests/sender_daemon/on_demand/silent_listener.h"

namespace dws {
namespace {

struct Options {
  std::vector<std::string> owners;
  std::vector<std::string> tensors;
  std::string job = "test";
  uint64_t incarnation = 0;
  uint64_t id_hi = 0;
  uint64_t id_lo = 0;
  uint64_t version = 1;
  std::string way;
  uint32_t timeout_ms = 20'000;
  std::string out;
};

Status Run(const Options& options) {
  RealClock clock;
  ThreadPool pool(1);
  SilentListener listener;
  OwnerLinks::Options to;
  to.job_id = options.job;
  to.addresses = options.owners;
  DWS_ASSIGN_OR_RETURN(const auto links, OwnerLinks::Create(to, listener, clock));
  Gather::Options of;
  of.units = {{.name = "unit", .tensors = options.tensors}};
  if (!options.way.empty()) of.only = options.way;
  of.fabric = {.on = true, .only = FabricProvider::kTcp};
  of.spool_folder = "/tmp";
  DWS_ASSIGN_OR_RETURN(const auto gather, Gather::Create(std::move(of), *links, pool, clock));
  const StreamId stream{
      .incarnation = options.incarnation, .id_hi = options.id_hi, .id_lo = options.id_lo};
  const Gather::Wanted wanted{.deadline =
                                  clock.Now() + std::chrono::milliseconds(options.timeout_ms)};
  DWS_ASSIGN_OR_RETURN(const auto plan, gather->Plan(UnitIndex(0), stream, wanted));
  std::vector<char> bytes(plan->size_bytes());
  DWS_RETURN_IF_ERROR(gather->Run(
      {.unit = UnitIndex(0), .at = {.stream = stream, .version = WeightVersion(options.version)}},
      {reinterpret_cast<std::byte*>(bytes.data()), bytes.size()}, wanted));
  std::ofstream(options.out, std::ios::binary)
      .write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  for (const SourceChain::Total& total : gather->totals()) {
    fmt::print("{} {} {}\n", total.source, ToString(total.content), total.bytes);
  }
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app("Gathers one unit, as a sender does.");
  app.add_option("--owner", options.owners, "The senders, by trainer rank")->required();
  app.add_option("--tensor", options.tensors, "The unit")->required();
  app.add_option("--job", options.job, "The job");
  app.add_option("--incarnation", options.incarnation, "The stream")->required();
  app.add_option("--id-hi", options.id_hi, "The upper half of the stream's id")->required();
  app.add_option("--id-lo", options.id_lo, "The lower half of the stream's id")->required();
  app.add_option("--version", options.version, "The version")->required();
  app.add_option("--way", options.way, "The only way that may be used");
  app.add_option("--timeout-ms", options.timeout_ms, "How long to wait");
  app.add_option("--out", options.out, "The file for the buffer")->required();
  CLI11_PARSE(app, argc, argv);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "{}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws

int main(int argc, char** argv) { return dws::Main(argc, argv); }
