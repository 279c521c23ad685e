#include "coordinator/store/job_store.h"

#include <SQLiteCpp/SQLiteCpp.h>
#include <sqlite3.h>

#include <type_traits>
#include <utility>

#include "absl/strings/str_cat.h"
#include "common/base/status.h"
#include "coordinator/store/database_copy.h"

namespace harmony::store {
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

// The columns of a job but its number, in one order, for all that reads or writes them.
// `take(name, value, is_blob)`.
template <typename Record, typename Take>
void ForEachColumn(Record& record, Take take) {
  take("state", record.state, false);
  take("stop", record.stop, false);
  take("yaml", record.yaml, false);
  take("job_json", record.job_json, false);
  take("config_json", record.config_json, false);
  take("plan", record.plan, true);
  take("plan_text", record.plan_text, false);
  take("result_keys", record.result_keys, false);
  take("output_dir", record.output_dir, false);
  take("max_steps", record.max_steps, false);
  take("completed_steps", record.completed_steps, false);
  take("last_loss", record.last_loss, false);
  take("error", record.error, false);
  take("error_code", record.error_code, false);
  take("submitted_at", record.submitted_at, false);
  take("started_at", record.started_at, false);
  take("ended_at", record.ended_at, false);
  take("summary", record.summary, false);
  take("summary_json", record.summary_json, false);
  take("profile", record.profile, false);
  take("replan", record.replan, false);
}

// "state, stop, ...", and as many question marks.
struct ColumnTexts {
  std::string names, places;
  ColumnTexts() {
    const JobRecord none;
    ForEachColumn(none, [this](const char* name, const auto&, bool) {
      absl::StrAppend(&names, names.empty() ? "" : ", ", name);
      absl::StrAppend(&places, places.empty() ? "?" : ", ?");
    });
  }
};

// Binds all columns, from the first place on; returns the next place.
int BindColumns(const JobRecord& record, SQLite::Statement& statement) {
  int place = 1;
  ForEachColumn(record, [&](const char*, const auto& value, bool is_blob) {
    using T = std::decay_t<decltype(value)>;
    if constexpr (std::is_enum_v<T>) {
      statement.bind(place++, static_cast<int64_t>(value));
    } else if constexpr (std::is_same_v<T, std::string>) {
      if (is_blob) {
        statement.bind(place++, value.data(), static_cast<int>(value.size()));
      } else {
        statement.bind(place++, value);
      }
    } else {
      statement.bind(place++, value);
    }
  });
  return place;
}

// Of a row of "SELECT number, <columns>".
JobRecord ReadRow(SQLite::Statement& row) {
  JobRecord record;
  int column = 0;
  record.number = row.getColumn(column++).getInt64();
  ForEachColumn(record, [&](const char*, auto& value, bool) {
    using T = std::decay_t<decltype(value)>;
    const SQLite::Column cell = row.getColumn(column++);
    if constexpr (std::is_same_v<T, std::string>) {
      value = cell.getString();
    } else if constexpr (std::is_same_v<T, double>) {
      value = cell.getDouble();
    } else {
      value = static_cast<T>(cell.getInt64());
    }
  });
  return record;
}

absl::Status StatusOf(const SQLite::Exception& error) {
  const int code = error.getErrorCode();
  const std::string text = absl::StrCat("job database: ", error.what());
  if (code == SQLITE_BUSY || code == SQLITE_LOCKED) {
    return absl::FailedPreconditionError(
        absl::StrCat(text,
                     " (another coordinator uses this state directory: wait until "
                     "it has ended, or name it by its --runtime-dir)"));
  }
  if (code == SQLITE_CANTOPEN) {
    return absl::FailedPreconditionError(
        absl::StrCat(text, " (the state directory has to exist, and be writable for who asks)"));
  }
  if (code == SQLITE_FULL) {
    return absl::ResourceExhaustedError(absl::StrCat(text, " (its disk needs room)"));
  }
  if (code == SQLITE_CORRUPT || code == SQLITE_NOTADB) {
    return absl::DataLossError(absl::StrCat(
        text, " (move the file aside to begin a new one; what jobs wrote stays where it is)"));
  }
  return absl::InternalError(text);
}

// The library throws where anything fails, each bind included; here, and only here, that becomes a
// status.
template <typename Body>
absl::Status Try(Body body) {
  try {
    body();
  } catch (const SQLite::Exception& error) {
    return StatusOf(error);
  }
  return absl::OkStatus();
}

}  // namespace

JobStore::JobStore(std::unique_ptr<SQLite::Database> db) : db_(std::move(db)) {}
JobStore::~JobStore() = default;

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::Open(const std::string& state_dir) {
  const std::string path = absl::StrCat(state_dir, "/", kDatabaseName);
  constexpr int kBusyMillis = 2000;  // a predecessor that is being killed still holds it
  std::unique_ptr<JobStore> store;
  int64_t version = 0;
  const absl::Status opened = Try([&] {
    store.reset(new JobStore(std::make_unique<SQLite::Database>(
        path, SQLite::OPEN_READWRITE | SQLite::OPEN_CREATE, kBusyMillis)));
    store->db_->exec(
        "PRAGMA locking_mode = EXCLUSIVE;"
        "PRAGMA journal_mode = WAL;"
        "PRAGMA synchronous = NORMAL;"
        "PRAGMA foreign_keys = ON;");
    version = store->Migrate();
  });
  HARMONY_RETURN_IF_ERROR_CTX(opened, path);
  if (version > kSchemaVersion) {
    return absl::FailedPreconditionError(absl::StrCat(path, ": written by a newer program (schema ",
                                                      version, ", this one knows ", kSchemaVersion,
                                                      ")"));
  }
  return store;
}

absl::StatusOr<std::unique_ptr<JobStore>> JobStore::OpenCopy(const std::string& state_dir,
                                                             int64_t* holder) {
  HARMONY_ASSIGN_OR_RETURN(const DatabaseCopy copy, DatabaseCopy::Make(state_dir));
  *holder = copy.holder();
  // The copy's folder goes at the end of this function; what is open can be read on.
  absl::StatusOr<std::unique_ptr<JobStore>> store = Open(copy.folder());
  if (store.ok()) return store;
  return WithContext(store.status(), absl::StrCat("a copy of ", state_dir, "/", kDatabaseName));
}

int64_t JobStore::Migrate() {
  // Taken at once, so that a second process is told now and not at its first write.
  SQLite::Transaction all(*db_, SQLite::TransactionBehavior::EXCLUSIVE);
  const int64_t version = db_->execAndGet("PRAGMA user_version").getInt64();
  if (version < 1) db_->exec(kSchema);
  if (version < 2) db_->exec(kSchema2);
  if (version < 3) db_->exec(kSchema3);
  all.commit();
  return version;
}

absl::Status JobStore::Insert(JobRecord* record) {
  const ColumnTexts columns;
  return Try([&] {
    db_->exec("PRAGMA synchronous = FULL");
    SQLite::Statement statement(
        *db_, absl::StrCat("INSERT INTO jobs (", columns.names, ") VALUES (", columns.places, ")"));
    BindColumns(*record, statement);
    statement.exec();
    record->number = db_->getLastInsertRowid();
    db_->exec("PRAGMA synchronous = NORMAL");
  });
}

absl::Status JobStore::Save(const JobRecord& record) {
  const ColumnTexts columns;
  return Try([&] {
    SQLite::Statement statement(*db_, absl::StrCat("UPDATE jobs SET (", columns.names, ") = (",
                                                   columns.places, ") WHERE number = ?"));
    statement.bind(BindColumns(record, statement), record.number);
    statement.exec();
  });
}

absl::Status JobStore::SaveProgress(int64_t number, int64_t completed_steps, double last_loss) {
  return Try([&] {
    SQLite::Statement statement(
        *db_, "UPDATE jobs SET completed_steps = ?, last_loss = ? WHERE number = ?");
    statement.bind(1, completed_steps);
    statement.bind(2, last_loss);
    statement.bind(3, number);
    statement.exec();
  });
}

absl::StatusOr<std::vector<JobRecord>> JobStore::LoadAll() {
  const ColumnTexts columns;
  std::vector<JobRecord> records;
  HARMONY_RETURN_IF_ERROR(Try([&] {
    SQLite::Statement query(
        *db_, absl::StrCat("SELECT number, ", columns.names, " FROM jobs ORDER BY number"));
    while (query.executeStep()) records.push_back(ReadRow(query));
  }));
  return records;
}

absl::Status JobStore::Remove(const std::vector<int64_t>& numbers) {
  return Try([&] {
    SQLite::Transaction all(*db_);
    SQLite::Statement log(*db_, "DELETE FROM log WHERE job = ?");
    SQLite::Statement job(*db_, "DELETE FROM jobs WHERE number = ?");
    for (const int64_t number : numbers) {
      for (SQLite::Statement* const statement : {&log, &job}) {
        statement->bind(1, number);
        statement->exec();
        statement->reset();
      }
    }
    all.commit();
  });
}

absl::Status JobStore::AppendLog(int64_t number, const JobLogLine& line) {
  return Try([&] {
    SQLite::Statement statement(*db_, "INSERT INTO log (job, time, text) VALUES (?, ?, ?)");
    statement.bind(1, number);
    statement.bind(2, line.time);
    statement.bind(3, line.text);
    statement.exec();
  });
}

absl::StatusOr<std::vector<JobLogLine>> JobStore::ReadLog(int64_t number) {
  std::vector<JobLogLine> lines;
  HARMONY_RETURN_IF_ERROR(Try([&] {
    SQLite::Statement query(*db_, "SELECT time, text FROM log WHERE job = ? ORDER BY rowid");
    query.bind(1, number);
    while (query.executeStep()) {
      lines.push_back({query.getColumn(0).getString(), query.getColumn(1).getString()});
    }
  }));
  return lines;
}

}  // namespace harmony::store
