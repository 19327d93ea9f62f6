PRAGMA user_version=0;
BEGIN TRANSACTION;
CREATE TABLE agent_destinations (
	agent_group_id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	target_type TEXT NOT NULL, 
	target_id TEXT NOT NULL, 
	created_at TEXT NOT NULL, 
	PRIMARY KEY (agent_group_id, name), 
	FOREIGN KEY(agent_group_id) REFERENCES agent_groups (id)
);
CREATE TABLE agent_group_members (
	user_id TEXT NOT NULL, 
	agent_group_id TEXT NOT NULL, 
	added_by TEXT, 
	added_at TEXT NOT NULL, 
	PRIMARY KEY (user_id, agent_group_id), 
	FOREIGN KEY(agent_group_id) REFERENCES agent_groups (id), 
	FOREIGN KEY(user_id) REFERENCES users (id)
);
CREATE TABLE agent_groups (
	id TEXT NOT NULL, 
	name TEXT NOT NULL, 
	folder TEXT NOT NULL, 
	agent_provider TEXT, 
	container_config TEXT, 
	created_at TEXT NOT NULL, 
	uid INTEGER NOT NULL, 
	model TEXT, 
	paused INTEGER DEFAULT '0' NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (folder), 
	UNIQUE (uid)
);
INSERT INTO "agent_groups" VALUES('a-vvjanxxz633y','main','main',NULL,NULL,'2026-12-01T02:03:48.337Z',2000000000,NULL,0);
CREATE TABLE alembic_version (
	version_num VARCHAR(32) NOT NULL, 
	CONSTRAINT alembic_version_pkc PRIMARY KEY (version_num)
);
INSERT INTO "alembic_version" VALUES('0001');
CREATE TABLE channel_offsets (
	channel_type TEXT NOT NULL, 
	account_id TEXT NOT NULL, 
	value TEXT NOT NULL, 
	updated_at TEXT NOT NULL, 
	PRIMARY KEY (channel_type, account_id)
);
CREATE TABLE counters (
	name TEXT NOT NULL, 
	value INTEGER NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "counters" VALUES('uid',2000000000);
CREATE TABLE host_outbox (
	id TEXT NOT NULL, 
	seq INTEGER, 
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
	state TEXT DEFAULT 'queued' NOT NULL, 
	state_changed TEXT, 
	attempts INTEGER DEFAULT '0' NOT NULL, 
	next_attempt_at TEXT, 
	chunks_done INTEGER DEFAULT '0' NOT NULL, 
	platform_ids TEXT DEFAULT '[]' NOT NULL, 
	unknown_count INTEGER DEFAULT '0' NOT NULL, 
	last_error TEXT, 
	PRIMARY KEY (id), 
	UNIQUE (seq)
);
CREATE TABLE ingest (
	channel_type TEXT NOT NULL, 
	account_id TEXT NOT NULL, 
	event_key TEXT NOT NULL, 
	session_id TEXT, 
	message_id TEXT, 
	received_at TEXT NOT NULL, 
	PRIMARY KEY (channel_type, account_id, event_key)
);
INSERT INTO "ingest" VALUES('terminal','local','cli:message:X7uaWcXdeWZS3Kwq','s-qj2nb77b0vfy','bc4ba2d1-6d19-5be6-934c-1527d7f68d4c','2026-12-01T02:03:48.846Z');
CREATE TABLE ingest_spool (
	position INTEGER NOT NULL PRIMARY KEY AUTOINCREMENT, 
	message_id TEXT NOT NULL, 
	event TEXT NOT NULL, 
	session_id TEXT, 
	"trigger" INTEGER DEFAULT '1' NOT NULL, 
	received_at TEXT NOT NULL, 
	UNIQUE (message_id)
);
CREATE TABLE messaging_group_agents (
	id TEXT NOT NULL, 
	messaging_group_id TEXT NOT NULL, 
	agent_group_id TEXT NOT NULL, 
	trigger_rules TEXT, 
	response_scope TEXT DEFAULT 'all' NOT NULL, 
	session_mode TEXT DEFAULT 'shared' NOT NULL, 
	priority INTEGER DEFAULT '0' NOT NULL, 
	created_at TEXT NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(agent_group_id) REFERENCES agent_groups (id), 
	FOREIGN KEY(messaging_group_id) REFERENCES messaging_groups (id), 
	UNIQUE (messaging_group_id, agent_group_id)
);
INSERT INTO "messaging_group_agents" VALUES('w-gxxab85z74k4','c-0e58k1rgk5v9','a-vvjanxxz633y',NULL,'all','shared',0,'2026-12-01T02:03:48.337Z');
CREATE TABLE messaging_groups (
	id TEXT NOT NULL, 
	channel_type TEXT NOT NULL, 
	account_id TEXT DEFAULT '' NOT NULL, 
	platform_id TEXT NOT NULL, 
	name TEXT, 
	is_group INTEGER DEFAULT '0' NOT NULL, 
	unknown_sender_policy TEXT DEFAULT 'strict' NOT NULL, 
	created_at TEXT NOT NULL, 
	PRIMARY KEY (id), 
	UNIQUE (channel_type, account_id, platform_id)
);
INSERT INTO "messaging_groups" VALUES('c-0e58k1rgk5v9','terminal','local','cli','terminal',0,'strict','2026-12-01T02:03:48.337Z');
CREATE TABLE sessions (
	id TEXT NOT NULL, 
	agent_group_id TEXT NOT NULL, 
	messaging_group_id TEXT, 
	thread_id TEXT, 
	agent_provider TEXT, 
	status TEXT DEFAULT 'active' NOT NULL, 
	container_status TEXT DEFAULT 'stopped' NOT NULL, 
	last_active TEXT, 
	created_at TEXT NOT NULL, 
	node TEXT, 
	session_key TEXT DEFAULT '' NOT NULL, 
	PRIMARY KEY (id), 
	FOREIGN KEY(agent_group_id) REFERENCES agent_groups (id), 
	FOREIGN KEY(messaging_group_id) REFERENCES messaging_groups (id)
);
INSERT INTO "sessions" VALUES('s-qj2nb77b0vfy','a-vvjanxxz633y','c-0e58k1rgk5v9',NULL,NULL,'active','stopped','2026-12-01T02:03:48.846Z','2026-12-01T02:03:48.846Z',NULL,'');
CREATE TABLE settings (
	name TEXT NOT NULL, 
	value TEXT NOT NULL, 
	PRIMARY KEY (name)
);
INSERT INTO "settings" VALUES('installation_id','i-7afptdx7w446');
CREATE TABLE user_roles (
	user_id TEXT NOT NULL, 
	role TEXT NOT NULL, 
	agent_group_id TEXT, 
	granted_by TEXT, 
	granted_at TEXT NOT NULL, 
	CONSTRAINT user_roles_role CHECK (role IN ('owner', 'admin')), 
	FOREIGN KEY(agent_group_id) REFERENCES agent_groups (id), 
	FOREIGN KEY(user_id) REFERENCES users (id)
);
INSERT INTO "user_roles" VALUES('terminal:cli-user','owner',NULL,NULL,'2026-12-01T02:03:48.337Z');
CREATE TABLE users (
	id TEXT NOT NULL, 
	kind TEXT NOT NULL, 
	display_name TEXT, 
	created_at TEXT NOT NULL, 
	PRIMARY KEY (id)
);
INSERT INTO "users" VALUES('terminal:cli-user','terminal','root','2026-12-01T02:03:48.337Z');
CREATE INDEX host_outbox_open ON host_outbox (state) WHERE state IN ('queued', 'sending', 'unknown');
CREATE INDEX idx_sessions_agent_group ON sessions (agent_group_id);
CREATE INDEX idx_sessions_lookup ON sessions (messaging_group_id, thread_id);
CREATE UNIQUE INDEX sessions_one_active ON sessions (agent_group_id, coalesce(messaging_group_id, ''), coalesce(thread_id, ''), session_key) WHERE status = 'active';
CREATE UNIQUE INDEX user_roles_once ON user_roles (user_id, role, coalesce(agent_group_id, ''));
COMMIT;
