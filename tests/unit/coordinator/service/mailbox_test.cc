#include "coordinator/service/mailbox.h"

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
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
  EXPECT_TRUE(mailbox.Ask([&] { answer = static_cast<int>(seen.size()); }));
  EXPECT_EQ(answer, 100);
  mailbox.Close();
  loop.join();
  EXPECT_GT(ticks, 0);
  EXPECT_FALSE(mailbox.Ask([&] { answer = 0; }));
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
        while (mailbox.Ask([&] { ++served; })) {
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

// What a flood of users' questions may take of the loop.
TEST(MailboxTest, MessagesGoBeforeQuestionsWhichHaveATenthOfTheLoop) {
  using Clock = std::chrono::steady_clock;
  constexpr std::chrono::milliseconds kLong{5};
  Mailbox mailbox;
  std::atomic<bool> over = false;
  std::atomic<int> asked = 0;
  std::vector<std::thread> askers;
  for (int i = 0; i < 4; ++i) {
    askers.emplace_back([&] {
      while (!over && mailbox.Ask([&] {
        for (const auto until = Clock::now() + kLong; Clock::now() < until;) {
        }
        ++asked;
      })) {
      }
    });
  }
  std::thread loop([&] { mailbox.Run(std::chrono::milliseconds(1), [] {}); });
  // Each message posts the next: there is always one.
  const auto begin = Clock::now();
  int messages = 0;
  std::function<void()> next = [&] {
    ++messages;
    if (asked < 5) return mailbox.Post(next);
    over = true;
    mailbox.Close();
  };
  mailbox.Post(next);
  loop.join();
  for (std::thread& asker : askers) asker.join();
  // The first at once or after its patience, each of the others nine times as long after as it
  // took.
  EXPECT_GE(Clock::now() - begin, 9 * 4 * kLong);
  EXPECT_GT(messages, 100);
}

}  // namespace
}  // namespace harmony::service
