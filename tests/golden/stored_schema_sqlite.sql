CREATE TABLE IF NOT EXISTS ctxfold_leases (
	owner TEXT NOT NULL, 
	session TEXT NOT NULL, 
	name TEXT NOT NULL, 
	holder TEXT NOT NULL, 
	until_s DOUBLE NOT NULL, 
	PRIMARY KEY (owner, session, name)
)
 WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ctxfold_memory (
	owner TEXT NOT NULL, 
	item_id TEXT NOT NULL, 
	session TEXT NOT NULL, 
	place TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	state TEXT NOT NULL, 
	created_s DOUBLE NOT NULL, 
	payload TEXT NOT NULL, 
	PRIMARY KEY (owner, item_id)
)
 WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ctxfold_meta (
	"key" TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY ("key")
)
 WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ctxfold_postings (
	owner TEXT NOT NULL, 
	session TEXT NOT NULL, 
	first_key BLOB NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (owner, session, first_key)
)
 WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ctxfold_records (
	owner TEXT NOT NULL, 
	session TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	record_id TEXT NOT NULL, 
	turn_id TEXT, 
	kind TEXT NOT NULL, 
	fingerprint TEXT NOT NULL, 
	at_s DOUBLE NOT NULL, 
	payload TEXT NOT NULL, 
	number BIGINT, 
	PRIMARY KEY (owner, session, seq)
);
CREATE TABLE IF NOT EXISTS ctxfold_sessions (
	owner TEXT NOT NULL, 
	session TEXT NOT NULL, 
	head BIGINT NOT NULL, 
	snapshot_seq BIGINT NOT NULL, 
	documents BIGINT NOT NULL, 
	total_length BIGINT NOT NULL, 
	numbered BIGINT DEFAULT '0' NOT NULL, 
	PRIMARY KEY (owner, session)
)
 WITHOUT ROWID;
CREATE TABLE IF NOT EXISTS ctxfold_vectors (
	owner TEXT NOT NULL, 
	session TEXT NOT NULL, 
	embedder TEXT NOT NULL, 
	seq BIGINT NOT NULL, 
	data BLOB NOT NULL, 
	PRIMARY KEY (owner, session, embedder, seq)
);
CREATE UNIQUE INDEX IF NOT EXISTS ctxfold_records_by_id ON ctxfold_records (owner, session, record_id);
CREATE INDEX IF NOT EXISTS ctxfold_records_snapshots ON ctxfold_records (owner, session, seq) WHERE kind = 'snapshot_taken';
CREATE INDEX IF NOT EXISTS ctxfold_records_numbers ON ctxfold_records (owner, session, number) WHERE number IS NOT NULL;
CREATE INDEX IF NOT EXISTS ctxfold_memory_places ON ctxfold_memory (owner, place);
CREATE INDEX IF NOT EXISTS ctxfold_memory_kinds ON ctxfold_memory (owner, kind, state, created_s);
CREATE INDEX IF NOT EXISTS ctxfold_memory_sessions ON ctxfold_memory (owner, session);
