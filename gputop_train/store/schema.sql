-- Store of one run, schema 1. Times are CLOCK_MONOTONIC nanoseconds of the training host (run.json maps them
-- to wall time). "body" blobs are msgpack arrays of a record's fields; meta "layout" names the fields in their
-- order, so that an older or newer version reads them right.
-- A store whose tables differ from these, comments and blanks apart, is refused (files.py): a change of one
-- needs a new user_version, and the old form known there.
-- "Newest minutes": see retention.py for every age and bucket below.
PRAGMA application_id = 1196446804;  -- "GPTT"
PRAGMA user_version = 1;
CREATE TABLE IF NOT EXISTS meta (key TEXT PRIMARY KEY, value TEXT NOT NULL) WITHOUT ROWID;          -- JSON values
-- Newest minutes in full; older steps live on in step_rollup only. Keyed by end time, because indices start
-- again when a launcher restarts its workers, and so that a ring read twice is stored once.
CREATE TABLE IF NOT EXISTS step (
  rank INTEGER NOT NULL, t1_ns INTEGER NOT NULL, t0_ns INTEGER NOT NULL, idx INTEGER NOT NULL,
  labels BLOB NOT NULL,            -- msgpack: integers (ns) in the order of model.LABELS
  exposed BLOB,                    -- msgpack: {index into model.EXPOSED_LABELS: ns}, NULL without events
  micro INTEGER NOT NULL, samples INTEGER, dry REAL, syncs INTEGER NOT NULL, measured_ns INTEGER NOT NULL,
  PRIMARY KEY (rank, t1_ns)) WITHOUT ROWID;
-- One row a second and rank, for ever: sums over the steps that ended in that second.
CREATE TABLE IF NOT EXISTS step_rollup (
  rank INTEGER NOT NULL, sec INTEGER NOT NULL,
  n INTEGER NOT NULL, first_idx INTEGER NOT NULL, t0_ns INTEGER NOT NULL, t1_ns INTEGER NOT NULL,
  min_ns INTEGER NOT NULL, max_ns INTEGER NOT NULL, median_ns INTEGER NOT NULL,
  labels BLOB NOT NULL,            -- msgpack: summed integers in the order of model.LABELS
  exposed BLOB,                    -- msgpack: {index: [ns summed, wall ns of the steps that measured it]}
  micro INTEGER NOT NULL, samples INTEGER, dry REAL, dry_n INTEGER NOT NULL, syncs INTEGER NOT NULL,
  measured_ns INTEGER NOT NULL,
  PRIMARY KEY (rank, sec)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS interval (
  rank INTEGER NOT NULL, label TEXT NOT NULL, t0_ns INTEGER NOT NULL, t1_ns INTEGER NOT NULL,
  site_id INTEGER, bytes INTEGER, PRIMARY KEY (rank, label, t0_ns)) WITHOUT ROWID;
CREATE INDEX IF NOT EXISTS interval_t1 ON interval (t1_ns);  -- newest window: few rows end after its begin
CREATE TABLE IF NOT EXISTS site (
  rank INTEGER NOT NULL, id INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (rank, id)) WITHOUT ROWID;
-- Cumulative counters of sites that changed, so that a window can be cut out.
CREATE TABLE IF NOT EXISTS site_at (
  rank INTEGER NOT NULL, id INTEGER NOT NULL, t_ns INTEGER NOT NULL, count INTEGER NOT NULL,
  total_ns INTEGER NOT NULL, bytes INTEGER, unpinned_bytes INTEGER,
  PRIMARY KEY (rank, id, t_ns)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS loader (
  rank INTEGER NOT NULL, id INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (rank, id)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS loader_at (
  rank INTEGER NOT NULL, id INTEGER NOT NULL, t_ns INTEGER NOT NULL, ready INTEGER,
  batches INTEGER NOT NULL, wait_ns INTEGER NOT NULL, PRIMARY KEY (rank, id, t_ns)) WITHOUT ROWID;
-- Newest snapshot JSON of each rank, without its sites and loaders.
CREATE TABLE IF NOT EXISTS probe_state (rank INTEGER PRIMARY KEY, t_ns INTEGER NOT NULL, body TEXT NOT NULL);
CREATE TABLE IF NOT EXISTS memory (
  rank INTEGER NOT NULL, t_ns INTEGER NOT NULL, allocated INTEGER NOT NULL, body BLOB NOT NULL,
  PRIMARY KEY (rank, t_ns)) WITHOUT ROWID;
-- A UUID is 40 bytes: the series below carry a small number in its place.
CREATE TABLE IF NOT EXISTS device (id INTEGER PRIMARY KEY, uuid TEXT NOT NULL UNIQUE);
CREATE TABLE IF NOT EXISTS util (
  dev INTEGER NOT NULL, t_ns INTEGER NOT NULL, util REAL NOT NULL, PRIMARY KEY (dev, t_ns)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS util_rollup (
  dev INTEGER NOT NULL, sec INTEGER NOT NULL, n INTEGER NOT NULL, mean REAL NOT NULL, lo REAL NOT NULL, hi REAL NOT NULL,
  PRIMARY KEY (dev, sec)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpu (
  dev INTEGER NOT NULL, t_ns INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (dev, t_ns)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS gpm (
  dev INTEGER NOT NULL, t_ns INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (dev, t_ns)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS host (t_ns INTEGER PRIMARY KEY, body BLOB NOT NULL);
CREATE TABLE IF NOT EXISTS proc (
  t_ns INTEGER NOT NULL, pid INTEGER NOT NULL, body BLOB NOT NULL, PRIMARY KEY (t_ns, pid)) WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS finding (t_ns INTEGER PRIMARY KEY, body TEXT NOT NULL);  -- diagnosis JSON, when it changed
-- One-off facts: no driver, words lost, log text dropped, supervisor replaced.
CREATE TABLE IF NOT EXISTS note (id INTEGER PRIMARY KEY, t_ns INTEGER NOT NULL, kind TEXT NOT NULL, body TEXT NOT NULL);
