-- Store of one run, schema 1. Times are CLOCK_MONOTONIC nanoseconds of the training host (clock rows map them to wall time).
PRAGMA user_version = 1;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;         -- JSON values
-- Newest minutes in full; older rows live on in step_rollup only.
CREATE TABLE IF NOT EXISTS step (
  rank INTEGER NOT NULL, idx INTEGER NOT NULL, t0_ns INTEGER NOT NULL, t1_ns INTEGER NOT NULL,
  labels BLOB NOT NULL,            -- msgpack: 15 integers (ns) in the order of model.LABELS
  exposed BLOB,                    -- msgpack: {label: ns}, NULL without events
  micro INTEGER NOT NULL, samples INTEGER, dry REAL, syncs INTEGER NOT NULL, measured_ns INTEGER NOT NULL,
  PRIMARY KEY (rank, idx)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS step_t1 ON step (t1_ns);
-- One row a second and rank, for ever. Sums of the steps that ended in that second.
CREATE TABLE IF NOT EXISTS step_rollup (
  rank INTEGER NOT NULL, sec INTEGER NOT NULL,
  n INTEGER NOT NULL, first_idx INTEGER NOT NULL, t0_ns INTEGER NOT NULL, t1_ns INTEGER NOT NULL,
  min_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL, median_ns INTEGER NOT NULL,
  labels BLOB NOT NULL,            -- msgpack: 15 summed integers
  exposed BLOB,                    -- msgpack: {label: [ns summed, wall ns of the steps that carried events]}
  micro INTEGER NOT NULL, samples INTEGER, dry REAL, syncs INTEGER NOT NULL, measured_ns INTEGER NOT NULL,
  PRIMARY KEY (rank, sec)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS interval (
  id INTEGER PRIMARY KEY, rank INTEGER NOT NULL, label TEXT NOT NULL, t0_ns INTEGER NOT NULL, t1_ns INTEGER NOT NULL,
  site_id INTEGER, bytes INTEGER);
CREATE INDEX IF NOT EXISTS interval_t0 ON interval (t0_ns);
CREATE TABLE IF NOT EXISTS site (
  rank INTEGER NOT NULL, id INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (rank, id)) WITHOUT ROWID;   -- msgpack of model.Site
-- Cumulative site counters over time, one row every 10 s for sites that changed, so that a window can be cut out.
CREATE TABLE IF NOT EXISTS site_at (
  rank INTEGER NOT NULL, id INTEGER NOT NULL, t_ns INTEGER NOT NULL, count INTEGER NOT NULL, total_ns INTEGER NOT NULL, bytes INTEGER,
  PRIMARY KEY (rank, id, t_ns)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS loader (rank INTEGER NOT NULL, id INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (rank, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS loader_at (            -- queue depth polls, newest minutes
  rank INTEGER NOT NULL, id INTEGER NOT NULL, t_ns INTEGER NOT NULL, ready INTEGER, PRIMARY KEY (rank, id, t_ns)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS probe_state (rank INTEGER PRIMARY KEY, t_ns INTEGER NOT NULL, body TEXT NOT NULL);   -- newest snapshot JSON per rank, sites and loaders taken out
CREATE TABLE IF NOT EXISTS memory (
  rank INTEGER NOT NULL, t_ns INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (rank, t_ns)) WITHOUT ROWID;        -- msgpack of model.MemorySample; thinned to one minimum a 10 s when old
CREATE TABLE IF NOT EXISTS util (uuid TEXT NOT NULL, t_ns INTEGER NOT NULL, util REAL NOT NULL, PRIMARY KEY (uuid, t_ns)) WITHOUT ROWID;   -- driver samples, newest minutes
CREATE TABLE IF NOT EXISTS util_rollup (uuid TEXT NOT NULL, sec INTEGER NOT NULL, n INTEGER NOT NULL, mean REAL NOT NULL, lo REAL NOT NULL, hi REAL NOT NULL,
  PRIMARY KEY (uuid, sec)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu (uuid TEXT NOT NULL, t_ns INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (uuid, t_ns)) WITHOUT ROWID;      -- model.GpuSample; thinned to one a 10 s when old
CREATE TABLE IF NOT EXISTS gpm (uuid TEXT NOT NULL, t_ns INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (uuid, t_ns)) WITHOUT ROWID;      -- newest minutes in full, then one mean a 10 s
CREATE TABLE IF NOT EXISTS host (t_ns INTEGER PRIMARY KEY, body BLOB NOT NULL);                                       -- thinned to one a 10 s when old
CREATE TABLE IF NOT EXISTS proc (t_ns INTEGER NOT NULL, pid INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (t_ns, pid)) WITHOUT ROWID;    -- thinned to one a 10 s when old
CREATE TABLE IF NOT EXISTS finding (t_ns INTEGER PRIMARY KEY, body TEXT NOT NULL);                                    -- diagnosis JSON, one row when it changed
CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, t_ns INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);  -- one-off facts: no driver, words lost, log text dropped, supervisor replaced
