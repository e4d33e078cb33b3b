#include "tools/bench/measure/timing.h"

#include <algorithm>

#include "common/base/check.h"
#include "common/base/clock.h"

namespace dws::bench {

double Median(std::vector<double> values) {
  DWS_CHECK(!values.empty());
  std::sort(values.begin(), values.end());
  const size_t middle = values.size() / 2;
  return values.size() % 2 != 0 ? values[middle] : (values[middle - 1] + values[middle]) / 2;
}

std::vector<double> MedianSeconds(std::span<const Contender> contenders, int rounds) {
  const RealClock clock;
  std::vector<std::vector<double>> seconds(contenders.size());
  // All contenders take turns, so that a slow moment of the machine hits each of them.
  for (int round = -1; round < rounds; ++round) {
    for (size_t i = 0; i < contenders.size(); ++i) {
      if (contenders[i].prepare) contenders[i].prepare();
      const TimePoint start = clock.Now();
      contenders[i].run();
      const double took = ToSeconds(clock.Now() - start);
      if (round >= 0) seconds[i].push_back(took);
    }
  }
  std::vector<double> medians;
  for (std::vector<double>& each : seconds) medians.push_back(Median(std::move(each)));
  return medians;
}

}  // namespace dws::bench
