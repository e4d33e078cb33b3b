// The fake driver: streams, copies, launches. Work stays in its stream until it is waited
// for, which is as late as the driver may run it; with a clock, it runs at once.
#include <array>
#include <cstring>
#include <utility>

#include "common/memory/cuda/kernels/diff/diff_args.h"
#include "common/memory/cuda/kernels/entry/host_kernels.h"
#include "common/memory/cuda/kernels/quantise/quantise_args.h"
#include "tests/fakes/cuda/fake_state.h"
#include "tests/fakes/cuda/model/kernel_work.h"

namespace dws::cuda {
namespace {

// Device addresses are pointers of this process here.
void* At(uint64_t address) { return reinterpret_cast<void*>(address); }  // NOLINT

std::shared_ptr<FakeStream> FindStream(void* handle) {
  State& state = TheState();
  if (handle == nullptr) {  // the default stream of the device: its work runs at once
    auto stream = std::make_shared<FakeStream>();
    stream->device = CurrentDevice();
    return stream;
  }
  const auto found = state.streams.find(handle);
  return found == state.streams.end() ? nullptr : found->second;
}

// Adds work to a stream of the current context. The default stream waits for the others, and they
// wait for it. `modelled` is called with a clock only, after the work has run.
DriverResult Enqueue(void* handle, std::function<DriverResult()> work,
                     const std::function<ModelledWork(const GpuModel&)>& modelled) {
  State& state = TheState();
  const std::shared_ptr<FakeStream> stream = FindStream(handle);
  if (stream == nullptr || stream->device != CurrentDevice()) return DriverResult::kInvalidHandle;
  stream->Push(std::move(work));
  if (handle == nullptr) state.RunAll();
  if (handle == nullptr || state.clock != nullptr) stream->RunUpTo(stream->asked);
  if (state.clock != nullptr && stream->error == DriverResult::kSuccess) {
    state.clock->Run(stream->device->number, stream->id, modelled(state.clock->model()));
  }
  if (handle != nullptr) return DriverResult::kSuccess;
  if (state.clock != nullptr) ReturnAt(state.clock->WaitForAll());
  return stream->error;
}

// Device memory of any kind, or memory of the host that the device may read.
bool Reachable(uint64_t address, uint64_t size) {
  return TheState().Accessible(address, size) || TheState().InHost(address, size);
}

DriverResult Copy(uint64_t target, uint64_t source, size_t size) {
  const Access access;
  std::memmove(At(target), At(source), size);
  return DriverResult::kSuccess;
}

// Memory of the host that is not page-locked is read or written before the call returns.
DriverResult CopyHost(uint64_t target, uint64_t source, size_t size, uint64_t host, void* stream) {
  State& state = TheState();
  const bool pinned = state.InHost(host, size);
  const auto kind = host == source ? ModelledOp::Kind::kToDevice : ModelledOp::Kind::kToHost;
  const DriverResult asked = Enqueue(
      stream, [=] { return Copy(target, source, size); },
      [=](const GpuModel& model) { return WorkOfCopy(model, kind, size, pinned); });
  if (asked != DriverResult::kSuccess || pinned) return asked;
  const std::shared_ptr<FakeStream> found = FindStream(stream);
  found->RunUpTo(found->asked);
  if (state.clock != nullptr) ReturnAt(state.clock->WaitFor(found->id));
  return DriverResult::kSuccess;
}

// A copy of a kernel's struct: the driver takes it at the launch.
struct Arguments {
  alignas(16) std::array<std::byte, 256> bytes = {};
};
constexpr size_t kArgumentBytes[kKernelCount] = {
    sizeof(StageArgs), sizeof(StageArgs), sizeof(CommitArgs), sizeof(DigestArgs),
    sizeof(DiffArgs),  sizeof(DiffArgs),  sizeof(GatherArgs), sizeof(QuantiseArgs)};
static_assert(sizeof(StageArgs) <= sizeof(Arguments) && sizeof(DiffArgs) <= sizeof(Arguments));

// With DWS_FAKE_CUDA_WRONG_CODES=1 a device divides by the scale where fp8-block128/deepseek
// multiplies by its reciprocal: few codes differ.
void ChangeCodes(Arguments& arguments) {
  if (Variable("DWS_FAKE_CUDA_WRONG_CODES", "") != "1") return;
  QuantiseArgs args;
  std::memcpy(&args, arguments.bytes.data(), sizeof(args));
  if (args.rule == quantise::Rule::kDeepseek) args.rule = quantise::Rule::kDeepseekDivide;
  std::memcpy(arguments.bytes.data(), &args, sizeof(args));
}

// The kernels' tables are arrays of structs with 8-byte fields; the first field is the blocks'.
DriverResult CheckArguments(const Arguments& arguments) {
  uint64_t blocks = 0;
  std::memcpy(&blocks, arguments.bytes.data(), sizeof(blocks));
  if (blocks % 8 != 0) return DriverResult::kMisalignedAddress;
  return Reachable(blocks, 1) ? DriverResult::kSuccess : DriverResult::kIllegalAddress;
}

}  // namespace

void FakeStream::Push(std::function<DriverResult()> work) {
  waiting.push_back(std::move(work));
  ++asked;
}

void FakeStream::RunUpTo(uint64_t number) {
  while (done < number && !waiting.empty()) {
    const std::function<DriverResult()> work = std::move(waiting.front());
    waiting.pop_front();
    ++done;
    if (error == DriverResult::kSuccess) error = work();  // no work runs after an error
  }
}

DriverResult cuStreamCreateWithPriority(void** stream, unsigned flags, int /*priority*/) {
  FAKE_CUDA_CALL(kContext);
  if ((flags & ~kStreamNonBlocking) != 0) return DriverResult::kInvalidValue;
  auto made = std::make_shared<FakeStream>();
  made->device = CurrentDevice();
  made->id = TheState().next_id++;
  *stream = made.get();
  TheState().streams[*stream] = std::move(made);
  return DriverResult::kSuccess;
}

DriverResult cuStreamDestroy_v2(void* stream) {
  FAKE_CUDA_CALL(kContext);
  const std::shared_ptr<FakeStream> found = FindStream(stream);
  if (found == nullptr || stream == nullptr) return DriverResult::kInvalidHandle;
  found->RunUpTo(found->asked);
  if (TheState().clock != nullptr) TheState().clock->ForgetStream(found->id);
  TheState().streams.erase(stream);
  return DriverResult::kSuccess;
}

DriverResult cuStreamSynchronize(void* stream) {
  if (stream == nullptr) return cuCtxSynchronize();
  FAKE_CUDA_CALL(kContext);
  const std::shared_ptr<FakeStream> found = FindStream(stream);
  if (found == nullptr) return DriverResult::kInvalidHandle;
  found->RunUpTo(found->asked);
  if (TheState().clock != nullptr) ReturnAt(TheState().clock->WaitFor(found->id));
  return found->error;
}

// Each call runs one piece of the work, or moves the clock, so repeated queries end.
DriverResult cuStreamQuery(void* stream) {
  FAKE_CUDA_CALL(kContext);
  const std::shared_ptr<FakeStream> found = FindStream(stream);
  if (found == nullptr) return DriverResult::kInvalidHandle;
  if (const auto& clock = TheState().clock; clock != nullptr && !clock->Query(found->id)) {
    return DriverResult::kNotReady;
  }
  if (found->done == found->asked) return found->error;
  found->RunUpTo(found->done + 1);
  return DriverResult::kNotReady;
}

DriverResult cuCtxSynchronize() {
  FAKE_CUDA_CALL(kContext);
  for (const auto& [handle, stream] : TheState().streams) {
    stream->RunUpTo(stream->asked);
    if (stream->error != DriverResult::kSuccess) return stream->error;
  }
  if (TheState().clock != nullptr) ReturnAt(TheState().clock->WaitForAll());
  return DriverResult::kSuccess;
}

DriverResult cuMemcpyHtoDAsync_v2(uint64_t target, const void* source, size_t size, void* stream) {
  FAKE_CUDA_CALL(kContext);
  const auto from = reinterpret_cast<uint64_t>(source);
  if (!Reachable(target, size)) return DriverResult::kInvalidValue;
  return CopyHost(target, from, size, from, stream);
}

DriverResult cuMemcpyDtoHAsync_v2(void* target, uint64_t source, size_t size, void* stream) {
  FAKE_CUDA_CALL(kContext);
  const auto to = reinterpret_cast<uint64_t>(target);
  if (!Reachable(source, size)) return DriverResult::kInvalidValue;
  return CopyHost(to, source, size, to, stream);
}

DriverResult cuMemcpyDtoDAsync_v2(uint64_t target, uint64_t source, size_t size, void* stream) {
  FAKE_CUDA_CALL(kContext);
  if (!Reachable(target, size) || !Reachable(source, size)) return DriverResult::kInvalidValue;
  return Enqueue(
      stream, [=] { return Copy(target, source, size); },
      [=](const GpuModel& model) {
        return WorkOfCopy(model, ModelledOp::Kind::kOnDevice, size, true);
      });
}

DriverResult cuMemcpyHtoD_v2(uint64_t target, const void* source, size_t size) {
  return cuMemcpyHtoDAsync_v2(target, source, size, nullptr);
}

DriverResult cuMemcpyDtoH_v2(void* target, uint64_t source, size_t size) {
  return cuMemcpyDtoHAsync_v2(target, source, size, nullptr);
}

DriverResult cuMemsetD8Async(uint64_t target, unsigned char value, size_t count, void* stream) {
  FAKE_CUDA_CALL(kContext);
  if (!Reachable(target, count)) return DriverResult::kInvalidValue;
  return Enqueue(
      stream,
      [=] {
        const Access access;
        std::memset(At(target), value, count);
        return DriverResult::kSuccess;
      },
      [=](const GpuModel& model) { return WorkOfSet(model, count); });
}

DriverResult cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                            unsigned block_x, unsigned block_y, unsigned block_z,
                            unsigned /*shared_bytes*/, void* stream, void** parameters,
                            void** extra) {
  FAKE_CUDA_CALL(kContext);
  const auto found = TheState().functions.find(function);
  if (found == TheState().functions.end() || found->second.module->device != CurrentDevice()) {
    return DriverResult::kInvalidHandle;
  }
  if (grid_x == 0 || grid_y != 1 || grid_z != 1 || block_x != kBlockThreads || block_y != 1 ||
      block_z != 1 || parameters == nullptr || extra != nullptr) {
    return DriverResult::kInvalidValue;
  }
  const Kernel kernel = found->second.kernel;
  Arguments arguments;
  std::memcpy(arguments.bytes.data(), parameters[0], kArgumentBytes[static_cast<size_t>(kernel)]);
  if (kernel == Kernel::kQuantise) ChangeCodes(arguments);
  const auto work = [arguments, kernel] {
    const DriverResult checked = CheckArguments(arguments);
    if (checked != DriverResult::kSuccess) return checked;
    const Access access;
    RunOnHost(kernel, arguments.bytes.data());
    return DriverResult::kSuccess;
  };
  return Enqueue(stream, work, [&](const GpuModel& model) {
    const Access access;
    return WorkOfKernel(model, kernel, arguments.bytes.data(),
                        [](uint64_t address) { return TheState().InHost(address, 1); });
  });
}

}  // namespace dws::cuda
