// dws-sender: runs beside one trainer rank.
#include <memory>

#include "common/memory/cuda/kernel_image.h"
#include "common/service/program/daemon_program.h"
#include "sender_daemon/app/sender_app.h"
#include "sender_daemon/app/sender_flags.h"

namespace dws {
namespace {

DaemonProgram MakeSender() {
  const auto options = std::make_shared<SenderOptions>();
  options->job_id = "default";
  return {.name = "dws-sender",
          .description = "Publishes the weights of one trainer rank as versioned deltas.",
          .declare = [options](CLI::App& app) { AddSenderFlags(app, *options); },
          .finish = [options](Config& config) { FinishSenderFlags(config, *options); },
          .start =
              [options] {
                options->gpu_kernels = cuda::KernelImage();
                return StartSender(*options);
              }};
}

}  // namespace
}  // namespace dws

int main(int argc, char** argv) { return dws::RunProgram(dws::MakeSender, argc, argv); }
