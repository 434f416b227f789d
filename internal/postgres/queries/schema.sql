-- For sqlc alone: package migrate creates the schema before the files of schema/ run in it.
CREATE SCHEMA outbox_schema;
