CREATE TABLE ctxfold_meta (
    key TEXT NOT NULL,
    value TEXT NOT NULL,
    PRIMARY KEY (key)
);

CREATE TABLE ctxfold_records (
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    seq BIGINT NOT NULL,
    record_id TEXT NOT NULL,
    turn_id TEXT,
    kind TEXT NOT NULL,
    fingerprint TEXT NOT NULL,
    at_s DOUBLE PRECISION NOT NULL,
    payload TEXT NOT NULL,
    PRIMARY KEY (owner, session, seq)
);

CREATE TABLE ctxfold_leases (
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    name TEXT NOT NULL,
    holder TEXT NOT NULL,
    until_s DOUBLE PRECISION NOT NULL,
    PRIMARY KEY (owner, session, name)
);

CREATE TABLE ctxfold_sessions (
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    head BIGINT NOT NULL,
    snapshot_seq BIGINT NOT NULL,
    documents BIGINT NOT NULL,
    total_length BIGINT NOT NULL,
    PRIMARY KEY (owner, session)
);

CREATE TABLE ctxfold_terms (
    owner TEXT NOT NULL,
    session TEXT NOT NULL,
    term TEXT NOT NULL,
    seq BIGINT NOT NULL,
    count BIGINT NOT NULL,
    length BIGINT NOT NULL,
    PRIMARY KEY (owner, session, term, seq)
);

CREATE UNIQUE INDEX ctxfold_records_by_id ON ctxfold_records ((owner COLLATE "C"), (session COLLATE "C"), (record_id COLLATE "C"));

CREATE INDEX ctxfold_records_snapshots ON ctxfold_records ((owner COLLATE "C"), (session COLLATE "C"), seq) WHERE kind = 'snapshot_taken';
