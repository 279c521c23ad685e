#pragma once

// What a part found, sent to the main process as it is found: a part that hangs later has reported.

#include <string>
#include <vector>

namespace harmony::bench {

struct Spread {
  double median = 0;
  double low = 0;
  double high = 0;
  size_t count = 0;
};
Spread SpreadOf(std::vector<double> values);
// `share` of the values are at most the result.
double Quantile(std::vector<double> values, double share);

void ReportNumber(const std::string& name, double value, const std::string& unit);
void ReportSpread(const std::string& name, const Spread& spread, const std::string& unit);
void ReportText(const std::string& name, const std::string& text);
void ReportFlag(const std::string& name, bool value);
// An answer to a question of the design.
void ReportVerdict(const std::string& name, bool good, const std::string& text);

std::string JsonString(const std::string& text);

}  // namespace harmony::bench
