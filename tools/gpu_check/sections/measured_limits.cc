#include "tools/gpu_check/sections/measured_limits.h"

#include <algorithm>
#include <functional>
#include <optional>
#include <utility>
#include <vector>

#include "common/base/clock.h"
#include "tools/bench/measure/timing.h"

namespace dws::gpu_check {
namespace {

using cuda::CudaBuffer;
using cuda::CudaDevice;
using cuda::CudaStream;
using cuda::DriverApi;
using cuda::DriverResult;

constexpr uint64_t kPinnedBytesMax = uint64_t{1} << 30;
constexpr unsigned kReadThreads = 256;
constexpr unsigned kReadBlocksPerProcessor = 8;
constexpr uint64_t kReadUnit = 16;   // bytes of one load
constexpr uint64_t kReadUnroll = 4;  // loads in flight of a thread

// Reads [data, data + 16 * count) without using it: four loads of 16 bytes in flight a thread, all
// threads of the grid side by side. The driver compiles it, so no toolkit is needed. The write for
// one value of the sum keeps the compiler from removing the loads.
constexpr const char kReadKernel[] = R"ptx(
.version 7.0
.target sm_80
.address_size 64
.visible .entry read_all(.param .u64 data, .param .u64 count, .param .u64 out)
{
  .reg .pred %p<3>;
  .reg .b32 %sum, %n, %t, %a<4>, %b<4>, %c<4>, %d<4>;
  .reg .b64 %at, %end, %out, %stride, %step, %two, %three;
  ld.param.u64 %at, [data];
  ld.param.u64 %end, [count];
  ld.param.u64 %out, [out];
  shl.b64 %end, %end, 4;
  add.u64 %end, %end, %at;
  mov.u32 %n, %ntid.x;
  mov.u32 %t, %nctaid.x;
  mul.wide.u32 %stride, %n, %t;
  shl.b64 %stride, %stride, 4;
  shl.b64 %step, %stride, 2;
  mov.u32 %t, %ctaid.x;
  mul.wide.u32 %two, %n, %t;
  mov.u32 %t, %tid.x;
  cvt.u64.u32 %three, %t;
  add.u64 %two, %two, %three;
  shl.b64 %two, %two, 4;
  add.u64 %at, %at, %two;
  mov.u32 %sum, 0;
next:
  setp.ge.u64 %p1, %at, %end;
  @%p1 bra done;
  add.u64 %two, %at, %stride;
  add.u64 %three, %two, %stride;
  ld.global.v4.u32 {%a0, %a1, %a2, %a3}, [%at];
  ld.global.v4.u32 {%b0, %b1, %b2, %b3}, [%two];
  ld.global.v4.u32 {%c0, %c1, %c2, %c3}, [%three];
  add.u64 %three, %three, %stride;
  ld.global.v4.u32 {%d0, %d1, %d2, %d3}, [%three];
  add.u64 %at, %at, %step;
  xor.b32 %a0, %a0, %a1;
  xor.b32 %a2, %a2, %a3;
  xor.b32 %b0, %b0, %b1;
  xor.b32 %b2, %b2, %b3;
  xor.b32 %c0, %c0, %c1;
  xor.b32 %c2, %c2, %c3;
  xor.b32 %d0, %d0, %d1;
  xor.b32 %d2, %d2, %d3;
  xor.b32 %a0, %a0, %a2;
  xor.b32 %b0, %b0, %b2;
  xor.b32 %c0, %c0, %c2;
  xor.b32 %d0, %d0, %d2;
  xor.b32 %a0, %a0, %b0;
  xor.b32 %c0, %c0, %d0;
  xor.b32 %a0, %a0, %c0;
  xor.b32 %sum, %sum, %a0;
  bra next;
done:
  setp.ne.u32 %p2, %sum, 305419897;
  @%p2 bra end;
  st.global.u32 [%out], %sum;
end:
  ret;
}
)ptx";

// Median seconds of `work`, synchronized; one more goes before.
Result<double> Seconds(int rounds, const CudaStream& stream, const std::function<Status()>& work) {
  const RealClock clock;
  std::vector<double> seconds;
  for (int round = -1; round < rounds; ++round) {
    const TimePoint start = clock.Now();
    DWS_RETURN_IF_ERROR(work());
    DWS_RETURN_IF_ERROR(stream.Synchronize());
    if (round >= 0) seconds.push_back(ToSeconds(clock.Now() - start));
  }
  return bench::Median(std::move(seconds));
}

// The kernel above, loaded. Lifecycle: unloaded by the destructor.
class ReadKernel {
 public:
  explicit ReadKernel(const CudaDevice& device) : api_(device.driver().api()) {
    loaded_ = api_.module_load_data(&module_, kReadKernel) == DriverResult::kSuccess &&
              api_.module_get_function(&function_, module_, "read_all") == DriverResult::kSuccess;
    int processors = 1;
    (void)api_.device_get_attribute(&processors, cuda::DeviceAttribute::kMultiprocessorCount,
                                    device.ordinal());
    blocks_ = static_cast<unsigned>(processors) * kReadBlocksPerProcessor;
  }
  ReadKernel(const ReadKernel&) = delete;
  ReadKernel& operator=(const ReadKernel&) = delete;
  ~ReadKernel() {
    if (module_ != nullptr) (void)api_.module_unload(module_);
  }

  bool loaded() const { return loaded_; }
  // Bytes that all threads read in one turn; it reads multiples of this.
  uint64_t turn_bytes() const { return uint64_t{blocks_} * kReadThreads * kReadUnroll * kReadUnit; }

  // Runs in the default stream and waits for it.
  Status Run(const CudaDevice& device, const CudaBuffer& data, uint64_t size_bytes) const {
    uint64_t address = data.address();
    uint64_t count = size_bytes / kReadUnit;
    uint64_t out = data.address();
    void* parameters[] = {&address, &count, &out};
    DWS_RETURN_IF_ERROR(
        device.driver().Check(api_.launch_kernel(function_, blocks_, 1, 1, kReadThreads, 1, 1, 0,
                                                 nullptr, parameters, nullptr),
                              "cuLaunchKernel"));
    return device.driver().Check(api_.stream_synchronize(nullptr), "cuStreamSynchronize");
  }

 private:
  const DriverApi& api_;
  void* module_ = nullptr;
  void* function_ = nullptr;
  bool loaded_ = false;
  unsigned blocks_ = 1;
};

}  // namespace

Result<MeasuredLimits> MeasureLimits(const BenchDevice& bench, uint64_t bytes, int rounds) {
  const CudaDevice& device = *bench.device;
  MeasuredLimits limits;
  DWS_ASSIGN_OR_RETURN(const CudaStream stream, device.CreateStream());
  DWS_ASSIGN_OR_RETURN(const CudaBuffer from, device.Allocate(bytes));
  DWS_RETURN_IF_ERROR(stream.Zero(from.address(), bytes));
  {
    DWS_ASSIGN_OR_RETURN(const CudaBuffer to, device.Allocate(bytes));
    DWS_ASSIGN_OR_RETURN(const double copy, Seconds(rounds, stream, [&] {
                           return stream.CopyOnDevice(to.address(), from.address(), bytes);
                         }));
    limits.copy = 2 * static_cast<double>(bytes) / copy;
  }
  const uint64_t pinned_bytes = std::min(bytes, kPinnedBytesMax);
  DWS_ASSIGN_OR_RETURN(const CudaBuffer pinned, device.AllocatePinned(pinned_bytes));
  DWS_ASSIGN_OR_RETURN(const double to_device, Seconds(rounds, stream, [&] {
                         return stream.CopyToDevice(from.address(), pinned.host_bytes());
                       }));
  limits.to_device = static_cast<double>(pinned_bytes) / to_device;

  const ReadKernel kernel(device);
  const uint64_t read_bytes = bytes / kernel.turn_bytes() * kernel.turn_bytes();
  limits.read_by_kernel = kernel.loaded() && read_bytes > 0;
  limits.read = limits.copy;
  if (limits.read_by_kernel) {
    DWS_ASSIGN_OR_RETURN(const double read, Seconds(rounds, stream, [&] {
                           return kernel.Run(device, from, read_bytes);
                         }));
    limits.read = static_cast<double>(read_bytes) / read;
  }
  return limits;
}

}  // namespace dws::gpu_check
