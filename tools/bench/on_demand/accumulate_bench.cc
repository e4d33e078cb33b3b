// Measures what training on demand does with gradients on one host. The reference is the same sum
// in the fewest instructions, in the way that is fastest on this machine: with ordinary stores or
// past the cache, on the same pages and on large ones. CSV on stdout, a table with the bars on
// stderr.
#include <fcntl.h>
#include <sys/mman.h>

#include <CLI/CLI.hpp>
#include <algorithm>
#include <cstring>
#include <memory>
#include <random>
#include <string>
#include <vector>

#include "common/base/check.h"
#include "common/base/instruction_set.h"
#include "common/base/intrinsics.h"
#include "common/memory/gradients/accumulators.h"
#include "tools/bench/measure/report.h"
#include "tools/bench/measure/timing.h"

namespace dws::bench {
namespace {

constexpr uint64_t kSizeMin = uint64_t{1} << 20;
constexpr uint64_t kSizeMax = uint64_t{8} << 30;
constexpr uint64_t kUnitElements = uint64_t{1} << 24;
constexpr size_t kPartElements = size_t{1} << 16;  // of the reference: what a thread takes at once

struct Options {
  uint64_t size_bytes = uint64_t{512} << 20;
  int rounds = 9;
  std::vector<size_t> threads = {1, 2};
};

// Anonymous memory, which the kernel may back with large pages.
class LargePages {
 public:
  explicit LargePages(size_t size_bytes) : size_bytes_(size_bytes) {
    void* const data =
        ::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    DWS_CHECK(data != MAP_FAILED);
    data_ = static_cast<std::byte*>(data);
    ::madvise(data, size_bytes, MADV_HUGEPAGE);
    std::memset(data_, 0, size_bytes);
  }
  ~LargePages() { ::munmap(data_, size_bytes_); }
  LargePages(const LargePages&) = delete;
  LargePages& operator=(const LargePages&) = delete;

  MutableByteSpan bytes() const { return {data_, size_bytes_}; }

 private:
  size_t size_bytes_;
  std::byte* data_ = nullptr;
};

DWS_TARGET_AVX512 __m512 WidenBf16(const std::byte* from) {
  const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
  return _mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(halves), 16));
}
DWS_TARGET_AVX512 void AddStraight(std::byte* sum, const std::byte* piece, size_t count) {
  for (size_t i = 0; i < count; i += 16) {
    _mm512_store_ps(sum + 4 * i,
                    _mm512_add_ps(_mm512_load_ps(sum + 4 * i), WidenBf16(piece + 2 * i)));
  }
}
DWS_TARGET_AVX512 void AddStreamed(std::byte* sum, const std::byte* piece, size_t count) {
  for (size_t i = 0; i < count; i += 16) {
    _mm512_stream_ps(reinterpret_cast<float*>(sum + 4 * i),
                     _mm512_add_ps(_mm512_load_ps(sum + 4 * i), WidenBf16(piece + 2 * i)));
  }
  _mm_sfence();
}
void AddPlain(std::byte* sum, const std::byte* piece, size_t count) {
  for (size_t i = 0; i < count; ++i) {
    const uint32_t bits = uint32_t{LoadLe<uint16_t>(piece + 2 * i)} << 16;
    StoreLe(sum + 4 * i, LoadLe<float>(sum + 4 * i) + std::bit_cast<float>(bits));
  }
}

using Loop = void (*)(std::byte*, const std::byte*, size_t);

void AddAll(Loop loop, MutableByteSpan sum, ByteSpan piece, ThreadPool& pool) {
  pool.ParallelFor(piece.size() / 2 / kPartElements, [&](size_t part, size_t) {
    const size_t first = part * kPartElements;
    loop(sum.data() + 4 * first, piece.data() + 2 * first, kPartElements);
  });
}

// Gradients of about normal distribution: BF16 numbers.
void FillGradients(MutableByteSpan bytes) {
  std::mt19937 random(1);
  std::normal_distribution<float> normal(0, 1e-3F);
  std::vector<uint16_t> some(kPartElements);
  for (uint16_t& bits : some) {
    bits = static_cast<uint16_t>(std::bit_cast<uint32_t>(normal(random)) >> 16);
  }
  for (size_t at = 0; at < bytes.size(); at += some.size() * 2) {
    std::memcpy(bytes.data() + at, some.data(), std::min(bytes.size() - at, some.size() * 2));
  }
}

// The sums of one rank, of as many BF16 gradients as `piece` has.
class Sums {
 public:
  static Result<std::unique_ptr<Sums>> Create(ByteSpan piece, bool exact) {
    std::vector<GradientUnit> units;
    for (uint64_t left = piece.size() / 2; left > 0; left -= units.back().elements) {
      units.push_back({.name = "unit", .elements = std::min(left, kUnitElements)});
    }
    DWS_ASSIGN_OR_RETURN(Accumulators made,
                         Accumulators::Create(units, {.exact = exact, .bytes_max = kSizeMax * 4}));
    return std::unique_ptr<Sums>(new Sums(std::move(made), piece));
  }
  void Add(ThreadPool& pool) {
    size_t unit = 0;
    for (size_t at = 0; at < piece_.size(); at += kUnitElements * 2) {
      const size_t size_bytes = std::min<size_t>(piece_.size() - at, kUnitElements * 2);
      const Status added =
          sums_.Add({.unit = unit++, .blocks = {}, .bytes = piece_.subspan(at, size_bytes)}, pool);
      DWS_CHECK(added.ok());
    }
  }
  void Seal(ThreadPool& pool) { DWS_CHECK(sums_.Seal(pool).ok()); }
  void LetGo() { sums_.LetGo(); }
  const Accumulators& accumulators() const { return sums_; }

 private:
  Sums(Accumulators sums, ByteSpan piece) : sums_(std::move(sums)), piece_(piece) {}

  Accumulators sums_;
  ByteSpan piece_;
};

std::string Threads(size_t threads) {
  return fmt::format("{} thread{}", threads, threads == 1 ? "" : "s");
}

// The sums as the rank maps them: loops in it and ours use the same pages.
Result<HostRegion> MapAsRank(const Accumulators& sums) {
  UniqueFd again(::fcntl(sums.descriptor().get(), F_DUPFD_CLOEXEC, 0));
  return HostRegion::Map(std::move(again), sums.size_bytes(), Access::kReadWrite);
}

Status Bench(const Options& options, ByteSpan piece, size_t threads, Report& report) {
  ThreadPool pool(threads - 1);
  DWS_ASSIGN_OR_RETURN(const auto sums, Sums::Create(piece, false));
  DWS_ASSIGN_OR_RETURN(const auto exact, Sums::Create(piece, true));
  DWS_ASSIGN_OR_RETURN(const HostRegion mapped, MapAsRank(sums->accumulators()));
  const MutableByteSpan same = mapped.mutable_bytes();
  const LargePages large(piece.size() * 2);
  const bool wide = MachineInstructionSet() == InstructionSet::kAvx512;
  const Loop straight = wide ? AddStraight : AddPlain;
  const Loop streamed = wide ? AddStreamed : AddPlain;
  const auto again = [&pool](Sums& each) {
    return [&each, &pool] {
      each.LetGo();
      each.Add(pool);
    };
  };
  const std::vector<Contender> contenders = {
      {.run = [&] { sums->Add(pool); }, .prepare = [&] { sums->LetGo(); }},
      {.run = [&] { sums->Add(pool); }},
      {.run = [&] { AddAll(straight, same, piece, pool); }},
      {.run = [&] { AddAll(streamed, same, piece, pool); }},
      {.run = [&] { AddAll(straight, large.bytes(), piece, pool); }},
      {.run = [&] { AddAll(streamed, large.bytes(), piece, pool); }},
      {.run = [&] { exact->Add(pool); }, .prepare = again(*exact)},
      {.run = [&] { sums->Seal(pool); }, .prepare = again(*sums)},
      {.run = [&] { exact->Seal(pool); }, .prepare = again(*exact)},
  };
  const std::vector<double> seconds = MedianSeconds(contenders, options.rounds);
  const auto elements = static_cast<double>(piece.size()) / 2e9;
  const auto add = [&](std::string id, std::string_view what, double ours, double reference,
                       std::optional<Bar> bar) {
    report.Add({.id = std::move(id),
                .what = fmt::format("{}; {}", what, Threads(threads)),
                .ours = elements / ours,
                .reference = elements / reference,
                .ratio = reference / ours,
                .unit = "1e9 elements/s",
                .bar = bar});
  };
  const double ours = seconds[1];
  add("P23c", "add BF16 to FP32; the best loop on the same pages", ours,
      std::min(seconds[2], seconds[3]), AtLeast(0.8));
  add("large", "add BF16 to FP32; the best loop on large pages", ours,
      std::min(seconds[4], seconds[5]), std::nullopt);
  add("exact", "add BF16 to FP64; to FP32", seconds[6], ours, std::nullopt);
  add("first", "store the first piece; add a later one", seconds[0], ours, std::nullopt);
  add("seal", "seal FP32; add", seconds[7], ours, std::nullopt);
  add("seal", "seal FP64; add", seconds[8], ours, std::nullopt);
  return OkStatus();
}

Status Run(const Options& options) {
  Report report;
  const LargePages piece(options.size_bytes / 2);
  FillGradients(piece.bytes());
  for (const size_t threads : options.threads) {
    DWS_RETURN_IF_ERROR(Bench(options, piece.bytes(), threads, report));
  }
  report.PrintTable();
  return OkStatus();
}

int Main(int argc, char** argv) {
  Options options;
  CLI::App app(
      "Measures training on demand: gradients that are added on one host (P23c). CSV on stdout "
      "(id,case,ours,reference,ratio,unit), a table with the bars on stderr.",
      "tools/bench.sh on_demand");
  app.add_option("--size", options.size_bytes, "Bytes of FP32 sums: 64MiB, 512MiB (default)")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(kSizeMin, kSizeMax));
  app.add_option("--rounds", options.rounds, "Repetitions of each; the median counts (default 9)")
      ->check(CLI::Range(1, 1000));
  app.add_option("--threads", options.threads, "Numbers of threads (default 1 and 2)")
      ->check(CLI::Range(1, 256));
  CLI11_PARSE(app, argc, argv);
  options.size_bytes = options.size_bytes / (4 * kPartElements) * (4 * kPartElements);
  const Status status = Run(options);
  if (status.ok()) return 0;
  fmt::print(stderr, "on_demand: {}\n", ToString(status));
  return 1;
}

}  // namespace
}  // namespace dws::bench

int main(int argc, char** argv) { return dws::bench::Main(argc, argv); }
