#include "coordinator/service/mailbox.h"

#include <gtest/gtest.h>

#include <thread>
#include <vector>

namespace harmony::service {
namespace {

TEST(MailboxTest, RunsMessagesInOrderOnOneThread) {
  Mailbox mailbox;
  std::vector<int> seen;
  int ticks = 0;
  std::thread loop([&] { mailbox.Run(std::chrono::milliseconds(1), [&] { ++ticks; }); });
  for (int i = 0; i < 100; ++i) mailbox.Post([&, i] { seen.push_back(i); });
  int answer = 0;
  EXPECT_TRUE(mailbox.PostAndWait([&] { answer = static_cast<int>(seen.size()); }));
  EXPECT_EQ(answer, 100);
  mailbox.Close();
  loop.join();
  EXPECT_GT(ticks, 0);
  EXPECT_FALSE(mailbox.PostAndWait([&] { answer = 0; }));
  EXPECT_EQ(answer, 100);
}

TEST(MailboxTest, NobodyWaitsForEverWhenItCloses) {
  for (int round = 0; round < 50; ++round) {
    Mailbox mailbox;
    std::thread loop([&] { mailbox.Run(std::chrono::milliseconds(1), [] {}); });
    int served = 0, answered = 0;
    std::vector<std::thread> askers;
    std::mutex mutex;
    for (int i = 0; i < 4; ++i) {
      askers.emplace_back([&] {
        while (mailbox.PostAndWait([&] { ++served; })) {
          std::lock_guard<std::mutex> lock(mutex);
          if (++answered == 40) mailbox.Close();
        }
      });
    }
    for (std::thread& asker : askers) asker.join();
    loop.join();
    EXPECT_GE(served, 40);
  }
}

}  // namespace
}  // namespace harmony::service
