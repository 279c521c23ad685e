#include "coordinator/store/job_store.h"

#include <sqlite3.h>

#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"

namespace harmony {
namespace {

constexpr int kSchemaVersion = 3;

constexpr char kSchema[] = R"(
CREATE TABLE jobs (
  number INTEGER PRIMARY KEY AUTOINCREMENT,
  state INTEGER NOT NULL, stop INTEGER NOT NULL,
  yaml TEXT NOT NULL, job_json TEXT NOT NULL, config_json TEXT NOT NULL,
  plan BLOB NOT NULL, plan_text TEXT NOT NULL, result_keys TEXT NOT NULL, output_dir TEXT NOT NULL,
  max_steps INTEGER NOT NULL, completed_steps INTEGER NOT NULL, last_loss REAL NOT NULL,
  error TEXT NOT NULL, error_code INTEGER NOT NULL,
  submitted_at TEXT NOT NULL, started_at TEXT NOT NULL, ended_at TEXT NOT NULL,
  summary TEXT NOT NULL, summary_json TEXT NOT NULL);
CREATE TABLE log (
  job INTEGER NOT NULL REFERENCES jobs(number), time TEXT NOT NULL, text TEXT NOT NULL);
CREATE INDEX log_by_job ON log (job);
PRAGMA user_version = 1;
)";

constexpr char kSchema2[] = R"(
ALTER TABLE jobs ADD COLUMN profile TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 2;
)";

constexpr char kSchema3[] = R"(
ALTER TABLE jobs ADD COLUMN replan TEXT NOT NULL DEFAULT '';
PRAGMA user_version = 3;
)";

constexpr char kColumns[] =
    "state, stop, yaml, job_json, config_json, plan, plan_text, result_keys, output_dir, "
    "max_steps, "
    "completed_steps, last_loss, error, error_code, submitted_at, started_at, ended_at, summary, "
    "summary_json, profile, replan";
constexpr int kNumColumns = 21;

absl::Status SqlError(sqlite3* db, absl::string_view what) {
  const int code = sqlite3_errcode(db);
  std::string text = absl::StrCat("job database: ", what, ": ", sqlite3_errmsg(db));
  if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, " (another coordinator uses this state directory)"));
  }
  if (code == SQLITE_FULL) return absl::ResourceExhaustedError(text);
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) return absl::DataLossError(text);
  return absl::InternalError(text);
}

// A prepared statement; values are bound in order.
class Statement {
 public:
  Statement(sqlite3* db, const std::string& sql) : db_(db) {
    sqlite3_prepare_v2(db, sql.c_str(), static_cast<int>(sql.size()), &statement_, nullptr);
  }
  ~Statement() { sqlite3_finalize(statement_); }
  Statement(const Statement&) = delete;
  Statement& operator=(const Statement&) = delete;

  Statement& Bind(int64_t value) {
    if (statement_ != nullptr) sqlite3_bind_int64(statement_, ++bound_, value);
    return *this;
  }
  Statement& Bind(double value) {
    if (statement_ != nullptr) sqlite3_bind_double(statement_, ++bound_, value);
    return *this;
  }
  Statement& Bind(const std::string& value) {
    if (statement_ != nullptr) {
      sqlite3_bind_text(statement_, ++bound_, value.data(), static_cast<int>(value.size()),
                        SQLITE_TRANSIENT);
    }
    return *this;
  }
  Statement& BindBlob(const std::string& value) {
    if (statement_ != nullptr) {
      sqlite3_bind_blob(statement_, ++bound_, value.data(), static_cast<int>(value.size()),
                        SQLITE_TRANSIENT);
    }
    return *this;
  }

  // The next row: true when there is one.
  absl::StatusOr<bool> Step() {
    if (statement_ == nullptr) return SqlError(db_, "preparing");
    const int code = sqlite3_step(statement_);
    if (code == SQLITE_ROW) return true;
    if (code == SQLITE_DONE) return false;
    return SqlError(db_, "running");
  }
  absl::Status Run() { return Step().status(); }

  int64_t Int(int column) { return sqlite3_column_int64(statement_, column); }
  double Real(int column) { return sqlite3_column_double(statement_, column); }
  std::string Text(int column) {
    const void* data = sqlite3_column_blob(statement_, column);
    const int size = sqlite3_column_bytes(statement_, column);
    return data == nullptr ? "" : std::string(static_cast<const char*>(data), size);
  }

 private:
  sqlite3* db_;
  sqlite3_stmt* statement_ = nullptr;
  int bound_ = 0;
};

JobRecord ReadRow(Statement& row) {
  JobRecord record;
  int column = 0;
  record.number = row.Int(column++);
  record.state = static_cast<JobState>(row.Int(column++));
  record.stop = static_cast<StopIntent>(row.Int(column++));
  record.yaml = row.Text(column++);
  record.job_json = row.Text(column++);
  record.config_json = row.Text(column++);
  record.plan = row.Text(column++);
  record.plan_text = row.Text(column++);
  record.result_keys = row.Text(column++);
  record.output_dir = row.Text(column++);
  record.max_steps = row.Int(column++);
  record.completed_steps = row.Int(column++);
  record.last_loss = row.Real(column++);
  record.error = row.Text(column++);
  record.error_code = static_cast<int>(row.Int(column++));
  record.submitted_at = row.Text(column++);
  record.started_at = row.Text(column++);
  record.ended_at = row.Text(column++);
  record.summary = row.Text(column++);
  record.summary_json = row.Text(column++);
  record.profile = row.Text(column++);
  record.replan = row.Text(column++);
  return record;
}

}  // namespace

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const std::string& state_dir) {
  const std::string path = state_dir + "/jobs.sqlite";
  sqlite3* db = nullptr;
  const int code =
      sqlite3_open_v2(path.c_str(), &db, SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE, nullptr);
  std::unique_ptr<JobStore> store(new JobStore(db));
  if (code != SQLITE_OK) {
    return absl::FailedPreconditionError(
        absl::StrCat("cannot open ", path, ": ", sqlite3_errmsg(db)));
  }
  sqlite3_busy_timeout(db, 2000);  // a predecessor that is being killed still holds it
  HARMONY_RETURN_IF_ERROR_CTX(store->Execute("PRAGMA locking_mode = EXCLUSIVE;"
                                             "PRAGMA journal_mode = WAL;"
                                             "PRAGMA synchronous = NORMAL;"
                                             "PRAGMA foreign_keys = ON;"),
                              path);
  HARMONY_RETURN_IF_ERROR_CTX(store->Migrate(), path);
  return store;
}

JobStore::~JobStore() { sqlite3_close(db_); }

absl::Status JobStore::Execute(const char* sql) {
  if (sqlite3_exec(db_, sql, nullptr, nullptr, nullptr) != SQLITE_OK) return SqlError(db_, sql);
  return absl::OkStatus();
}

absl::Status JobStore::Migrate() {
  // Taken at once, so that a second process is told now and not at its first write.
  HARMONY_RETURN_IF_ERROR(Execute("BEGIN EXCLUSIVE"));
  int64_t version = 0;
  {
    Statement query(db_, "PRAGMA user_version");
    HARMONY_ASSIGN_OR_RETURN(const bool found, query.Step());
    version = found ? query.Int(0) : 0;
  }
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(
        "written by a newer program (schema ", version, ", this one knows ", kSchemaVersion, ")"));
  }
  if (version < 1) HARMONY_RETURN_IF_ERROR(Execute(kSchema));
  if (version < 2) HARMONY_RETURN_IF_ERROR(Execute(kSchema2));
  if (version < 3) HARMONY_RETURN_IF_ERROR(Execute(kSchema3));
  return Execute("COMMIT");
}

absl::Status JobStore::Write(const JobRecord& record, bool insert) {
  std::string sql;
  if (insert) {
    sql = absl::StrCat("INSERT INTO jobs (", kColumns, ") VALUES (?");
    for (int i = 1; i < kNumColumns; ++i) sql += ", ?";
    sql += ")";
  } else {
    sql = absl::StrCat("UPDATE jobs SET (", kColumns, ") = (?");
    for (int i = 1; i < kNumColumns; ++i) sql += ", ?";
    sql += ") WHERE number = ?";
  }
  Statement statement(db_, sql);
  statement.Bind(static_cast<int64_t>(record.state))
      .Bind(static_cast<int64_t>(record.stop))
      .Bind(record.yaml)
      .Bind(record.job_json)
      .Bind(record.config_json)
      .BindBlob(record.plan)
      .Bind(record.plan_text)
      .Bind(record.result_keys)
      .Bind(record.output_dir)
      .Bind(record.max_steps)
      .Bind(record.completed_steps)
      .Bind(record.last_loss)
      .Bind(record.error)
      .Bind(static_cast<int64_t>(record.error_code))
      .Bind(record.submitted_at)
      .Bind(record.started_at)
      .Bind(record.ended_at)
      .Bind(record.summary)
      .Bind(record.summary_json)
      .Bind(record.profile)
      .Bind(record.replan);
  if (!insert) statement.Bind(record.number);
  return statement.Run();
}

absl::Status JobStore::Insert(JobRecord* record) {
  HARMONY_RETURN_IF_ERROR(Execute("PRAGMA synchronous = FULL"));
  const absl::Status written = Write(*record, /*insert=*/true);
  record->number = sqlite3_last_insert_rowid(db_);
  HARMONY_RETURN_IF_ERROR(Execute("PRAGMA synchronous = NORMAL"));
  return written;
}

absl::Status JobStore::Save(const JobRecord& record) { return Write(record, /*insert=*/false); }

absl::Status JobStore::SaveProgress(int64_t number, int64_t completed_steps, double last_loss) {
  Statement statement(db_, "UPDATE jobs SET completed_steps = ?, last_loss = ? WHERE number = ?");
  return statement.Bind(completed_steps).Bind(last_loss).Bind(number).Run();
}

absl::StatusOr<std::vector<JobRecord>> JobStore::LoadAll() {
  Statement query(db_, absl::StrCat("SELECT number, ", kColumns, " FROM jobs ORDER BY number"));
  std::vector<JobRecord> records;
  for (;;) {
    HARMONY_ASSIGN_OR_RETURN(const bool found, query.Step());
    if (!found) return records;
    records.push_back(ReadRow(query));
  }
}

absl::Status JobStore::AppendLog(int64_t number, const JobLogLine& line) {
  Statement statement(db_, "INSERT INTO log (job, time, text) VALUES (?, ?, ?)");
  return statement.Bind(number).Bind(line.time).Bind(line.text).Run();
}

absl::StatusOr<std::vector<JobLogLine>> JobStore::ReadLog(int64_t number) {
  Statement query(db_, "SELECT time, text FROM log WHERE job = ? ORDER BY rowid");
  query.Bind(number);
  std::vector<JobLogLine> lines;
  for (;;) {
    HARMONY_ASSIGN_OR_RETURN(const bool found, query.Step());
    if (!found) return lines;
    lines.push_back({query.Text(0), query.Text(1)});
  }
}

}  // namespace harmony
