#include "coordinator/service/run/metrics_log.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/resource.h>

#include <fstream>
#include <sstream>

#include "tests/unit/common/io/temp_dir.h"

namespace harmony::service {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;

// No file of this process may be larger, as if the disk were full.
class FullDisk {
 public:
  explicit FullDisk(rlim_t bytes) {
    signal(SIGXFSZ, SIG_IGN);
    getrlimit(RLIMIT_FSIZE, &before_);
    const rlimit less = {bytes, before_.rlim_max};
    setrlimit(RLIMIT_FSIZE, &less);
  }
  ~FullDisk() { setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_;
};

class MetricsLogTest : public ::testing::Test {
 protected:
  MetricsLogTest()
      : log_(*MetricsFile::Open(dir_.File("metrics.jsonl"), 0),
             [this](const std::string& text) { said_.push_back(text); }) {}
  std::string Read() {
    std::stringstream text;
    text << std::ifstream(dir_.File("metrics.jsonl")).rdbuf();
    return text.str();
  }
  io::TempDir dir_;
  std::vector<std::string> said_;
  MetricsLog log_;
};

TEST_F(MetricsLogTest, LinesThatDoNotFitFollowInOrderWhenThereIsRoom) {
  log_.Append(1, R"({"step":1})", Seconds(1));
  {
    const FullDisk full(15);
    log_.Append(2, R"({"step":2})", Seconds(2));
    log_.Append(3, R"({"step":3})", Seconds(2));
    EXPECT_FALSE(log_.complete());
    log_.OnTick(Millis(2'900));  // not yet
    log_.OnTick(Seconds(3));
    EXPECT_THAT(said_, ElementsAre(HasSubstr("1 lines are kept in memory; the next try is in 1.00"),
                                   HasSubstr("2 lines are kept in memory; the next try is in 2.")));
  }
  EXPECT_EQ(log_.file().last_step(), 1);
  log_.OnTick(Seconds(4));
  EXPECT_FALSE(log_.complete());
  log_.OnTick(Seconds(5));
  EXPECT_TRUE(log_.complete());
  EXPECT_EQ(said_.back(), "metrics.jsonl is complete again");
  EXPECT_EQ(Read(), "{\"step\":1}\n{\"step\":2}\n{\"step\":3}\n");
}

TEST_F(MetricsLogTest, TheEndTriesAtOnce) {
  {
    const FullDisk full(5);
    log_.Append(1, R"({"step":1})", Seconds(1));
    log_.Finish(Seconds(1));
    EXPECT_FALSE(log_.complete());
  }
  log_.Finish(Seconds(1));
  EXPECT_TRUE(log_.complete());
  EXPECT_EQ(Read(), "{\"step\":1}\n");
}

}  // namespace
}  // namespace harmony::service
