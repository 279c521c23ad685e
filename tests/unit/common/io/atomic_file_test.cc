#include "common/io/atomic_file.h"

#include <gtest/gtest.h>

#include "tests/unit/common/io/temp_dir.h"

namespace harmony::io {
namespace {

TEST(AtomicFileTest, AppearsWhole) {
  const TempDir dir;
  ASSERT_TRUE(WriteFileAtomically(dir.File("a"), "one").ok());
  ASSERT_TRUE(WriteFileAtomically(dir.File("a"), "two").ok());
  EXPECT_EQ(dir.Read("a"), "two");
  EXPECT_EQ(dir.FileCount(), 1u);
}

TEST(AtomicFileTest, LeavesTheOldFileWhenNotCommitted) {
  const TempDir dir;
  dir.Write("a", "old");
  {
    auto file = AtomicFile::Create(dir.File("a"));
    ASSERT_TRUE(file.ok());
    ASSERT_TRUE(file->file().WriteAt(0, "new", 3).ok());
  }
  EXPECT_EQ(dir.Read("a"), "old");
  EXPECT_EQ(dir.FileCount(), 1u);
}

TEST(AtomicFileTest, NamesWhatItCannotWrite) {
  const TempDir dir;
  const absl::Status status = WriteFileAtomically(dir.File("none/a"), "x");
  EXPECT_EQ(status.code(), absl::StatusCode::kNotFound);
  EXPECT_NE(std::string(status.message()).find("none/a"), std::string::npos);
}

TEST(AtomicDirectoryTest, ReplacesTheOldOneAtOnce) {
  const TempDir dir;
  for (const char* text : {"one", "two"}) {
    auto target = AtomicDirectory::Create(dir.File("x/final/"));
    ASSERT_TRUE(target.ok()) << target.status();
    ASSERT_TRUE(WriteFileAtomically(JoinPath(target->temporary_path(), text), text).ok());
    ASSERT_TRUE(target->Commit().ok());
  }
  EXPECT_EQ(dir.Read("x/final/two"), "two");
  EXPECT_FALSE(std::filesystem::exists(dir.File("x/final/one")));
  EXPECT_EQ(std::distance(std::filesystem::directory_iterator(dir.File("x")), {}), 1);
}

TEST(AtomicDirectoryTest, RemovesWhatIsNotCommitted) {
  const TempDir dir;
  {
    auto target = AtomicDirectory::Create(dir.File("final"));
    ASSERT_TRUE(target.ok());
    ASSERT_TRUE(WriteFileAtomically(JoinPath(target->temporary_path(), "a"), "x").ok());
  }
  EXPECT_EQ(dir.FileCount(), 0u);
}

TEST(FileTest, ShortFilesAndOtherThingsAreErrors) {
  const TempDir dir;
  const auto file = File::OpenForReading(dir.Write("a", "abc"));
  ASSERT_TRUE(file.ok());
  char buffer[8];
  EXPECT_TRUE(file->ReadAt(1, buffer, 2).ok());
  EXPECT_EQ(file->ReadAt(1, buffer, 3).code(), absl::StatusCode::kDataLoss);
  EXPECT_EQ(File::OpenForReading(dir.File("b")).status().code(), absl::StatusCode::kNotFound);
  EXPECT_EQ(File::OpenForReading(dir.path()).status().code(),
            absl::StatusCode::kFailedPrecondition);
  EXPECT_EQ(ReadWholeFile(dir.File("a"), 2).status().code(), absl::StatusCode::kInvalidArgument);
  EXPECT_EQ(*ReadWholeFile(dir.File("a"), 3), "abc");
}

TEST(FileTest, Paths) {
  EXPECT_EQ(ParentDirectory("a/b/c"), "a/b");
  EXPECT_EQ(ParentDirectory("/c"), "/");
  EXPECT_EQ(ParentDirectory("c"), ".");
  EXPECT_EQ(JoinPath("a", "b"), "a/b");
  EXPECT_EQ(JoinPath("a/", "b"), "a/b");
  EXPECT_EQ(JoinPath("a", "/b"), "/b");
}

}  // namespace
}  // namespace harmony::io
