// dws-receiver: runs beside one rollout engine. With --slime-dir it follows a folder of versions
// instead of senders. That is another app, without GPU kernels, because it writes nothing to GPU
// memory.
#include <memory>

#include "common/memory/cuda/kernel_image.h"
#include "common/service/program/daemon_program.h"
#include "receiver_daemon/app/receiver_app.h"
#include "receiver_daemon/follower/follower_app.h"
#include "receiver_daemon/options/receiver_flags.h"

namespace dws {
namespace {

DaemonProgram MakeReceiver() {
  const auto options = std::make_shared<ReceiverOptions>();
  options->socket = "/run/dws/receiver.sock";
  return {.name = "dws-receiver",
          .description = "Keeps the weights of a rollout engine equal to the trainer's.",
          .declare = [options](CLI::App& app) { AddReceiverFlags(app, *options); },
          .finish = [options](Config& config) { FinishReceiverFlags(config, *options); },
          .start =
              [options] {
                if (!options->follow.slime_dir.empty()) return StartFollower(*options);
                options->gpu_kernels = cuda::KernelImage();
                return StartReceiver(*options);
              }};
}

}  // namespace
}  // namespace dws

int main(int argc, char** argv) { return dws::RunProgram(dws::MakeReceiver, argc, argv); }
