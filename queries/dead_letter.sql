-- name: DeadLetterPrune :execrows
-- Deletes one chunk of dead letters of listeners past the retention of their topic.
WITH retention AS MATERIALIZED (
    SELECT
        unnest(@topics::text[]) AS topic,
        unnest(@retentions_us::bigint[]) * interval '1 microsecond' AS keep
),
old AS MATERIALIZED (
    SELECT d.no
    FROM outbox_schema.dead_letters AS d
    JOIN retention AS r ON r.topic = d.namespace || '/' || d.topic
    WHERE d.listener IS NOT NULL
      AND d.died_at < statement_timestamp() - r.keep
    LIMIT @batch_size::integer
    FOR UPDATE OF d SKIP LOCKED
)
DELETE FROM outbox_schema.dead_letters AS d
USING old AS o
WHERE d.no = o.no;
