#include <algorithm>
#include <functional>
#include <random>
#include <utility>

#include "tools/bench/codec/dense_bench.h"
#include "tools/bench/codec/receiver_side.h"
#include "tools/bench/codec/sender_side.h"

namespace dws::bench {
namespace {

constexpr uint64_t kBytesMax = uint64_t{16} << 20;
constexpr uint64_t kSeed = 20'260'102;
constexpr Bar kBar = AtMost(1.001);

struct Case {
  const char* name;
  DType dtype;
  std::function<void(std::vector<std::byte>&, std::mt19937_64&)> change;
};

void Randomise(std::vector<std::byte>& bytes, std::mt19937_64& random) {
  for (std::byte& byte : bytes) byte = static_cast<std::byte>(random());
}

// Changes the lowest byte of every `stride`-th element of `width` bytes.
void Touch(std::vector<std::byte>& bytes, size_t width, size_t stride) {
  for (size_t at = 0; at < bytes.size(); at += width * stride) bytes[at] ^= std::byte{1};
}

std::vector<Case> Cases() {
  return {
      {"nothing changed; BF16", DType::kBF16, [](auto&, auto&) {}},
      {"one element changed; BF16", DType::kBF16,
       [](std::vector<std::byte>& bytes, auto&) { bytes[bytes.size() / 2] ^= std::byte{1}; }},
      {"alternating elements by one step; BF16", DType::kBF16,
       [](std::vector<std::byte>& bytes, auto&) { Touch(bytes, 2, 2); }},
      {"everything by one step; BF16", DType::kBF16,
       [](std::vector<std::byte>& bytes, auto&) { Touch(bytes, 2, 1); }},
      {"random bits; BF16", DType::kBF16, Randomise},
      {"random bits; F32", DType::kF32, Randomise},
      {"random bits; F64", DType::kF64, Randomise},
      {"random bits; U8", DType::kU8, Randomise},
      {"codes of a quarter of the 128 x 128 blocks doubled; F8_E4M3", DType::kF8E4M3,
       [](std::vector<std::byte>& bytes, std::mt19937_64& random) {
         constexpr size_t kBlock = 128 * 128;
         for (size_t first = 0; first < bytes.size(); first += kBlock) {
           if (random() % 4 != 0) continue;
           const size_t end = std::min(first + kBlock, bytes.size());
           for (size_t i = first; i < end; ++i) bytes[i] ^= std::byte{0x08};  // an exponent step
         }
       }},
      {"NaNs with other payloads; F32", DType::kF32,
       [](std::vector<std::byte>& bytes, std::mt19937_64& random) {
         for (size_t at = 0; at + 4 <= bytes.size(); at += 4) {
           StoreLe(bytes.data() + at, static_cast<uint32_t>(random()) | 0x7F80'0000U);
         }
       }},
  };
}

Status BenchCase(const Case& which, uint64_t size_bytes, ThreadPool& pool, Report& report) {
  std::mt19937_64 random(kSeed);
  // Three bytes less than whole 8-byte words, where the elements are that small.
  const uint64_t elements = size_bytes / ElementBytes(which.dtype) - 3;
  TensorPair tensor{.spec = {.name = "weight", .dtype = which.dtype, .shape = {elements}}};
  tensor.before.resize(tensor.spec.SizeBytes());
  Randomise(tensor.before, random);
  tensor.after = tensor.before;
  which.change(tensor.after, random);

  DWS_ASSIGN_OR_RETURN(const Placement placement, PlaceTensors({tensor.spec}));
  DWS_ASSIGN_OR_RETURN(const auto sender, SenderSide::Create(placement));
  std::copy(tensor.before.begin(), tensor.before.end(), sender->weights().begin());
  sender->Capture(pool);
  sender->Seal();
  const std::vector<std::byte> before(sender->weights().begin(), sender->weights().end());
  std::copy(tensor.after.begin(), tensor.after.end(), sender->weights().begin());
  sender->Capture(pool);
  const RetainedVersionPtr sealed = sender->Seal();
  DWS_RETURN_IF_ERROR(Annotate(
      CheckObject(placement, sealed->object, before, sender->weights(), pool), which.name));

  const auto raw = static_cast<double>(tensor.spec.SizeBytes());
  const auto ours = static_cast<double>(sealed->object.size());
  report.Add({.id = "dense",
              .what = fmt::format("size: {}", which.name),
              .ours = ours,
              .reference = raw,
              .ratio = ours / raw,
              .unit = "bytes",
              .bar = kBar});
  return OkStatus();
}

}  // namespace

Status BenchDenseSizes(const Options& options, Report& report) {
  ThreadPool pool(1);
  const uint64_t size_bytes = std::min(options.size_bytes, kBytesMax);
  for (const Case& which : Cases()) {
    DWS_RETURN_IF_ERROR(BenchCase(which, size_bytes, pool, report));
  }
  return OkStatus();
}

}  // namespace dws::bench
