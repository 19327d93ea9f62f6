PRAGMA user_version=1;
BEGIN TRANSACTION;
CREATE TABLE deliveries (
    id TEXT PRIMARY KEY,
    seq INTEGER UNIQUE,
    turn_id TEXT,
    in_reply_to TEXT,
    kind TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    channel_type TEXT,
    account_id TEXT,
    platform_id TEXT,
    thread_id TEXT,
    content TEXT NOT NULL,
    deliver_after TEXT,
    recurrence TEXT,
    state TEXT NOT NULL DEFAULT 'queued',
    state_changed TEXT,
    attempts INTEGER NOT NULL DEFAULT 0,
    next_attempt_at TEXT,
    chunks_done INTEGER NOT NULL DEFAULT 0,
    platform_ids TEXT NOT NULL DEFAULT '[]',
    unknown_count INTEGER NOT NULL DEFAULT 0,
    last_error TEXT
);
INSERT INTO "deliveries" VALUES('o-nr71xj0q4ezd',1,'t-rw30ks3qsqen','bc4ba2d1-6d19-5be6-934c-1527d7f68d4c','chat','2026-12-01T02:03:49.802Z','terminal','local','cli',NULL,'{"text":"(rehearsal, no model) from long ago"}',NULL,NULL,'sent','2026-12-01T02:03:49.829Z',0,NULL,1,'["o-nr71xj0q4ezd/0"]',0,NULL);
INSERT INTO "deliveries" VALUES('o-left',NULL,'t-rw30ks3qsqen','bc4ba2d1-6d19-5be6-934c-1527d7f68d4c','chat','2026-12-01T02:03:49.802Z','terminal','local','cli',NULL,'{"text": "left by the old host"}',NULL,NULL,'queued',NULL,0,NULL,0,'[]',0,NULL);
CREATE TABLE destinations (
    name TEXT PRIMARY KEY,
    target_type TEXT NOT NULL,
    target_id TEXT NOT NULL
);
CREATE TABLE messages_in (
    id TEXT PRIMARY KEY,
    kind TEXT NOT NULL,
    timestamp TEXT NOT NULL,
    status TEXT NOT NULL DEFAULT 'pending',
    status_changed TEXT,
    process_after TEXT,
    recurrence TEXT,
    tries INTEGER NOT NULL DEFAULT 0,
    platform_id TEXT,
    channel_type TEXT,
    account_id TEXT,
    thread_id TEXT,
    content TEXT NOT NULL,
    seq INTEGER NOT NULL UNIQUE,
    series_id TEXT,
    slot TEXT,
    trigger INTEGER NOT NULL DEFAULT 1,
    on_wake INTEGER NOT NULL DEFAULT 0,
    source_session TEXT,
    principal TEXT
);
INSERT INTO "messages_in" VALUES('bc4ba2d1-6d19-5be6-934c-1527d7f68d4c','chat','2026-12-01T02:03:48.846Z','completed','2026-12-01T02:03:49.812Z',NULL,NULL,0,'cli','terminal','local',NULL,'{"sender":"root","senderId":"terminal:cli-user","text":"from long ago","attachments":[],"isFromMe":false}',2,NULL,NULL,1,0,NULL,'terminal:cli-user');
INSERT INTO "messages_in" VALUES('m-left','chat','2026-12-01T02:03:48.846Z','pending','2026-12-01T02:03:49.812Z',NULL,NULL,0,'cli','terminal','local',NULL,'{"sender":"root","senderId":"terminal:cli-user","text":"waits since the old host","attachments":[],"isFromMe":false}',1000,NULL,NULL,1,0,NULL,'terminal:cli-user');
CREATE INDEX messages_in_open ON messages_in(status, process_after) WHERE status IN ('pending', 'processing');
CREATE INDEX deliveries_open ON deliveries(state) WHERE state IN ('queued', 'sending', 'unknown');
CREATE INDEX deliveries_turn ON deliveries(turn_id);
COMMIT;
