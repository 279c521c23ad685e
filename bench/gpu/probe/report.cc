#include "bench/gpu/probe/report.h"

#include <algorithm>
#include <cmath>

#include "bench/gpu/probe/process.h"

namespace harmony::bench {
namespace {

std::string JsonNumber(double value) {
  return std::isfinite(value) ? Format("%.9g", value) : std::string("null");
}

void Send(const std::string& kind, const std::string& name, const std::string& json,
          const std::string& text) {
  std::string line = text;  // tabs part the fields
  std::replace(line.begin(), line.end(), '\t', ' ');
  Parent().Send(kind + "\t" + name + "\t" + json + "\t" + line);
}

}  // namespace

double Quantile(std::vector<double> values, double share) {
  if (values.empty()) return std::nan("");
  std::sort(values.begin(), values.end());
  const double place = share * static_cast<double>(values.size() - 1);
  const size_t below = static_cast<size_t>(place);
  const size_t above = std::min(below + 1, values.size() - 1);
  const double part = place - static_cast<double>(below);
  return values[below] * (1 - part) + values[above] * part;
}

Spread SpreadOf(std::vector<double> values) {
  return {Quantile(values, 0.5), Quantile(values, 0), Quantile(values, 1), values.size()};
}

void ReportNumber(const std::string& name, double value, const std::string& unit) {
  Send("result", name, "{\"value\": " + JsonNumber(value) + ", \"unit\": " + JsonString(unit) + "}",
       Format("%.6g %s", value, unit.c_str()));
}

void ReportSpread(const std::string& name, const Spread& spread, const std::string& unit) {
  Send("result", name,
       "{\"median\": " + JsonNumber(spread.median) + ", \"low\": " + JsonNumber(spread.low) +
           ", \"high\": " + JsonNumber(spread.high) + Format(", \"count\": %zu", spread.count) +
           ", \"unit\": " + JsonString(unit) + "}",
       Format("%.4g %s (%.4g to %.4g, n = %zu)", spread.median, unit.c_str(), spread.low,
              spread.high, spread.count));
}

void ReportText(const std::string& name, const std::string& text) {
  Send("result", name, JsonString(text), text);
}

void ReportFlag(const std::string& name, bool value) {
  Send("result", name, value ? "true" : "false", value ? "yes" : "no");
}

void ReportVerdict(const std::string& name, bool good, const std::string& text) {
  Send("verdict", name,
       std::string("{\"good\": ") + (good ? "true" : "false") + ", \"text\": " + JsonString(text) +
           "}",
       (good ? "GOOD: " : "BAD: ") + text);
}

std::string JsonString(const std::string& text) {
  std::string quoted = "\"";
  for (const char letter : text) {
    if (letter == '"' || letter == '\\') quoted += '\\';
    if (static_cast<unsigned char>(letter) < 0x20) {
      quoted += Format("\\u%04x", letter);
    } else {
      quoted += letter;
    }
  }
  return quoted + "\"";
}

}  // namespace harmony::bench
