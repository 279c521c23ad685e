#include "common/ipc/service_manager.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdlib>
#include <cstring>
#include <string>

namespace harmony::ipc {
namespace {

using ::testing::HasSubstr;

sockaddr_un AddressOf(const std::string& path) {
  sockaddr_un address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path, path.data(), path.size());
  return address;
}

UniqueFd Bind(int type, const std::string& path) {
  UniqueFd fd(socket(AF_UNIX, type, 0));
  const sockaddr_un address = AddressOf(path);
  unlink(path.c_str());
  EXPECT_EQ(bind(fd.get(), reinterpret_cast<const sockaddr*>(&address), sizeof(address)), 0);
  return fd;
}

// Plays systemd for this process.
class ServiceManagerTest : public ::testing::Test {
 protected:
  ServiceManagerTest() : socket_(Bind(SOCK_DGRAM, path_)) {
    setenv("NOTIFY_SOCKET", path_.c_str(), 1);
    setenv("WATCHDOG_USEC", "3000000", 1);
  }
  ~ServiceManagerTest() override { unlink(path_.c_str()); }

  std::string Said() { return ReceiveAnswer(socket_.get()).value_or(Answer{"(nothing)", {}}).text; }

  // What it hands over: `fd` alone, by this name.
  static void Hand(int fd, const char* name) {
    ASSERT_EQ(dup2(fd, kFirstHandedFd), kFirstHandedFd);
    setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
    setenv("LISTEN_FDS", "1", 1);
    setenv("LISTEN_FDNAMES", name, 1);
  }

  // Nobody else's from now on: what is opened later has other numbers.
  const int handed_ = dup2(STDERR_FILENO, kFirstHandedFd);
  const std::string path_ = ::testing::TempDir() + "/notify." + std::to_string(getpid());
  const UniqueFd socket_;
};

TEST_F(ServiceManagerTest, SignsOfLifeAskForTimeFromTheStopOn) {
  ServiceManager manager = ServiceManager::FromEnvironment();
  EXPECT_EQ(getenv("NOTIFY_SOCKET"), nullptr);
  manager.Ready();
  EXPECT_EQ(Said(), "READY=1");
  manager.Alive(Seconds(10));
  EXPECT_EQ(Said(), "WATCHDOG=1");
  manager.Alive(Millis(10'900));  // three in the watchdog's time are enough
  manager.Stopping();
  manager.Stopping();
  EXPECT_EQ(Said(), "STOPPING=1");
  manager.Alive(Millis(10'950));
  EXPECT_EQ(Said(), "WATCHDOG=1\nEXTEND_TIMEOUT_USEC=60000000");
}

TEST_F(ServiceManagerTest, DescriptorsAreHandedOverToBeKeptByName) {
  const ServiceManager manager = ServiceManager::FromEnvironment();
  const auto region = CreateDeviceRegion(0, MiB(1));
  ASSERT_TRUE(manager.Keep("device-0", region->get()).ok());
  const auto kept = ReceiveAnswer(socket_.get());
  ASSERT_TRUE(kept.ok()) << kept.status();
  EXPECT_EQ(kept->text, "FDSTORE=1\nFDPOLL=0\nFDNAME=device-0");
  EXPECT_TRUE(MappedRegion::Map(kept->fd.get(), MiB(1)).ok());
  ASSERT_TRUE(manager.Forget("device-0").ok());
  EXPECT_EQ(Said(), "FDSTOREREMOVE=1\nFDNAME=device-0");
}

TEST_F(ServiceManagerTest, DescriptorsThatItGivesBackAreTakenOnceAndByThoseWhoseTheyAre) {
  const auto region = CreateDeviceRegion(0, MiB(1));
  Hand(region->get(), "device-0");
  setenv("LISTEN_PID", "1", 1);
  EXPECT_EQ(HandedFdCount(), 0);
  setenv("LISTEN_PID", std::to_string(getpid()).c_str(), 1);
  EXPECT_EQ(HandedFdCount(), 1);
  auto handed = TakeHandedFds();
  ASSERT_TRUE(handed.ok()) << handed.status();
  ASSERT_EQ(handed->size(), 1u);
  EXPECT_EQ(handed->front().name, "device-0");
  EXPECT_TRUE(MappedRegion::Map(handed->front().fd.get(), MiB(1)).ok());
  EXPECT_EQ(HandedFdCount(), 0);
}

TEST_F(ServiceManagerTest, ASocketMustListenWhereItIsExpected) {
  const auto none = TakeHandedSocket("/elsewhere");
  ASSERT_TRUE(none.ok()) << none.status();
  EXPECT_FALSE(none->valid());
  const std::string path = path_ + ".listens";
  const UniqueFd socket = Bind(SOCK_STREAM, path);
  Hand(socket.get(), "it");
  EXPECT_FALSE(TakeHandedSocket(path).ok()) << "it does not listen yet";
  ASSERT_EQ(listen(socket.get(), 1), 0);
  Hand(socket.get(), "it");
  EXPECT_THAT(TakeHandedSocket("/elsewhere").status().message(), HasSubstr("on " + path));
  Hand(socket.get(), "it");
  EXPECT_TRUE(TakeHandedSocket(path).ok());
  unlink(path.c_str());
}

}  // namespace
}  // namespace harmony::ipc
